"""The four phases of `make stability`: what each trains with, and for how many steps."""

from dataclasses import dataclass

from energy_flow.config_parsing import load_config
from energy_flow.energy_config import EnergyConfig

_TINY = (
    "lattice.width=4",
    "lattice.height=4",
    "lattice.depth=3",
    "flow.max_flows=64",
    "flow.max_steps=4",
    "bridge.max_bytes=16",
    "training.batch_size=4",
)
_ON_A_CPU: tuple[str, ...] = ("training.batch_size=64", "flow.max_flows=4096", "bridge.max_bytes=96")
"""Python's own 100 KiB for the code of the first checkpoint and validation count there, and must not be a percent."""
_EVERYTHING = (
    "flow.checkpoint_steps=2",
    "training.accumulation=2",
    "training.checkpoint_interval=50",
    "training.validation_interval=50",
    "training.gradient_detail_interval=20",
    "training.memory_cleanup_interval=100",
    "optimizer.warmup_steps=20",
    "optimizer.final_learning_rate_share=0.1",
    "backoff.window=50",
    "data.word_dropout=0.1",
    "data.num_workers=1",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """A training run of the checklist."""

    name: str
    config_name: str
    steps: int
    assignments: tuple[str, ...]

    def config(self, device: str) -> EnergyConfig:
        """Its configuration on `device`."""
        fixed = (f"training.steps={self.steps}", f"runtime.device={device}", "runtime.progress=off")
        return load_config(self.config_name, assignments=[*self.assignments, *fixed])


def phases_of(device: str) -> tuple[Phase, ...]:
    """What is trained on a device of that kind; float16, with its loss scale, is what is mixed on every one."""
    config_name, steps, size = ("experiment", 600, ()) if device.startswith("cuda") else ("debug", 150, _ON_A_CPU)
    exact, mixed = (*size, "runtime.precision=float32"), (*size, "runtime.precision=float16")
    return (
        Phase(name="basic", config_name=config_name, steps=steps, assignments=exact),
        Phase(name="mixed precision", config_name=config_name, steps=steps, assignments=mixed),
        Phase(name="everything on", config_name=config_name, steps=steps, assignments=(*mixed, *_EVERYTHING)),
        Phase(name="long", config_name="debug", steps=10_000, assignments=_TINY),
    )
