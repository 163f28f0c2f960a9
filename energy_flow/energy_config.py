"""The trainer's settings, as frozen dataclasses, and the named configurations made of them.

Every field can be set from the command line (`--set lattice.width=8`) or from a TOML file; `config_parsing.py`
reads both and holds each value to the range that its type names here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

EMBEDDING_SIZE = 768
"""Numbers in a sentence embedding: what the sentence encoders that a teacher may stand for produce."""


@dataclass(frozen=True, slots=True)
class Range:
    """The values a number may take, both ends included; `None` leaves that end open."""

    lowest: float | None = None
    highest: float | None = None


Count = Annotated[int, Range(1)]
CountOrZero = Annotated[int, Range(0)]
Share = Annotated[float, Range(0.0, 1.0)]
NonNegative = Annotated[float, Range(0.0)]
Positive = Annotated[float, Range(1e-6)]


@dataclass(frozen=True, kw_only=True, slots=True)
class LatticeConfig:
    """The lattice that flows travel through, from depth 0 to depth - 1."""

    width: Count = 50  # cells along x
    height: Count = 50  # cells along y
    depth: Annotated[int, Range(2)] = 20  # cells along z, the direction of travel
    cell_channels: Count = 32  # learned numbers in each cell


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowConfig:
    """How flows start, move, land and stop."""

    max_flows: Count = 5000  # over the whole batch; each text gets an equal part, at most one flow per cell
    max_steps: Count = 40  # flow steps in one forward, at most
    min_advance: Annotated[float, Range(0.01)] = 0.5  # cells along z in one flow step, at least
    max_advance: Annotated[float, Range(0.01)] = 1.5  # cells along z in one flow step, at most
    max_shift: NonNegative = 1.0  # cells along x and along y in one flow step, at most
    energy_bound: Annotated[float, Range(0.01)] = 4.0  # an energy stays within plus and minus this
    convergence_threshold: Share = 0.95  # share of flows that must have landed for the rest to be given up
    convergence_patience: Count = 3  # flow steps in a row for which they must have
    compaction_lot: Share = 0.25  # landed flows are dropped in lots of this share of all; 0: only masked
    checkpoint_steps: CountOrZero = 0  # flow steps that backward computes anew together; 0: all are kept in memory


@dataclass(frozen=True, kw_only=True, slots=True)
class CarrierConfig:
    """Sizes of what computes a flow's next move."""

    hidden_size: Count = 512  # the recurrent state of a flow
    neuron_size: Count = 256  # what the neuron passes to the carrier


@dataclass(frozen=True, kw_only=True, slots=True)
class BridgeConfig:
    """The text bridge: a byte-level transformer on each side of the surfaces."""

    max_bytes: Annotated[int, Range(2)] = 256  # bytes of text read and written; longer texts are cut
    model_size: Count = 256  # numbers that stand for a byte between layers; a multiple of num_heads
    num_heads: Count = 4  # of each attention
    num_layers: Count = 2  # blocks on each side
    num_memory_tokens: Count = 16  # vectors that stand for a surface in attention


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Where sentence pairs and their embeddings come from, and how batches are loaded."""

    max_pairs: Count = 20000  # pairs kept when the dataset is built
    teacher: Literal["ngram", "transformers"] = "ngram"  # what embeds the texts
    teacher_path: str = ""  # folder of the transformers model; used by that teacher only
    shortest_ngram: Count = 3  # characters; of the ngram teacher
    longest_ngram: Count = 7  # characters; of the ngram teacher
    word_dropout: Share = 0.1  # share of input words dropped, the rest embedded anew; 0: use the stored embedding
    num_workers: CountOrZero = 4  # loader processes; 0 loads in the training process
    prefetch_factor: Count = 2  # batches that each worker prepares ahead
    persistent_workers: bool = True  # loader processes outlive a pass over the data
    pin_memory: bool = True  # batches in page-locked memory, which copies need to overlap; on CUDA only


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """AdamW, its learning rate over time, and the limit on its gradients."""

    learning_rate: NonNegative = 3e-4  # the highest that the schedule reaches
    warmup_steps: CountOrZero = 0  # steps over which the learning rate rises from zero; skipped steps do not count
    final_learning_rate_share: Share = 1.0  # of learning_rate, reached along a cosine at training.steps; 1: constant
    weight_decay: NonNegative = 0.01  # of AdamW, decoupled from the gradient
    gradient_clip_norm: Positive = 0.1  # global norm that gradients are scaled down to; see reports/clip_norm.md
    high_gradient_norm: Positive = 5.0  # from here on a gradient norm is told of
    critical_gradient_norm: Positive = 10.0  # from here on it is warned of


@dataclass(frozen=True, kw_only=True, slots=True)
class BackoffConfig:
    """Lowers the learning rate for a while when gradients grow beyond what they were; off unless asked for."""

    window: CountOrZero = 0  # finite gradient norms that the median is taken of; 0: never back off
    trigger: Annotated[float, Range(1.0)] = 4.0  # times the median, at which a norm lowers the learning rate
    factor: Annotated[float, Range(0.01, 1.0)] = 0.5  # what one such norm multiplies the learning rate by
    lowest: Annotated[float, Range(0.001, 1.0)] = 0.1  # share of the schedule's learning rate that always stays
    recovery_steps: Count = 100  # steps without such a norm after which the whole learning rate is back


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalerConfig:
    """The loss scale in float16, as `torch.amp.GradScaler` takes it."""

    init_scale: Positive = 1024.0  # of the first step
    growth_factor: Annotated[float, Range(1.001)] = 1.5  # of the scale, after growth_interval good steps
    backoff_factor: Annotated[float, Range(0.01, 0.99)] = 0.5  # of the scale, after a skipped step
    growth_interval: Count = 200  # good steps in a row, after which the scale grows
    lowest_scale: Positive = 1.0  # no skipped step takes the scale below it; 1 as in DeepSpeed


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    """The length of a run, its batches, the weights of its losses, and what it does now and then."""

    steps: Count = 1000  # optimizer steps
    batch_size: Count = 16  # texts in one micro-batch of one process
    accumulation: Count = 1  # micro-batches in one optimizer step
    seed: CountOrZero = 0  # of the weights, the order of the pairs and the dropped words
    surface_loss_weight: NonNegative = 0.1  # encoder: its surface against the mapper's
    text_loss_weight: NonNegative = 0.1  # decoder: cross entropy per byte
    log_interval: Count = 10  # steps between two log lines at level `training`
    checkpoint_interval: CountOrZero = 500  # steps between two checkpoints; 0: only one, at the end
    keep_checkpoints: Count = 3  # the newest ones that stay on the disk
    validation_share: Annotated[float, Range(0.0, 0.5)] = 0.05  # pairs held out of training: the last ones
    validation_interval: CountOrZero = 0  # steps between two validation passes; 0: only one, at the end
    validation_batches: CountOrZero = 0  # batches of one pass; 0: all held-out pairs
    gradient_detail_interval: CountOrZero = 0  # steps between two reports of every layer's gradient; 0: never
    memory_cleanup_interval: CountOrZero = 0  # steps between two returns of unused device memory; 0: never


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeConfig:
    """Where and in which precision the model runs, and what it says meanwhile."""

    device: str = "auto"  # auto, cpu, cuda, cuda:1 or mps; auto: the fastest kind there is
    precision: Literal["float32", "bfloat16", "float16"] = "float32"  # of the forward pass; weights stay float32
    tf32: bool = True  # float32 products on CUDA in TF32
    compile: bool = False  # compile the flow step with torch.compile
    num_threads: CountOrZero = 0  # torch's threads on the CPU; 0 leaves torch's own choice
    log_level: Literal["profiling", "performance", "training", "info", "warning"] = "info"  # the least that is said
    progress: Literal["auto", "on", "off"] = "auto"  # one line that is drawn over; auto: on a terminal
    tensorboard: Literal["auto", "off"] = "auto"  # event files beside the metrics; auto: where tensorboard is installed
    memory_warning_share: Share = 0.85  # of the device's memory, from which on it is warned of
    gpu_sample_seconds: Annotated[float, Range(0.1)] = 1.0  # between two readings of the GPU's utilisation


@dataclass(frozen=True, kw_only=True, slots=True)
class EnergyConfig:
    """Everything that shapes a run."""

    name: str = "experiment"
    lattice: LatticeConfig = field(default_factory=LatticeConfig)
    flow: FlowConfig = field(default_factory=FlowConfig)
    carrier: CarrierConfig = field(default_factory=CarrierConfig)
    bridge: BridgeConfig = field(default_factory=BridgeConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    backoff: BackoffConfig = field(default_factory=BackoffConfig)
    scaler: ScalerConfig = field(default_factory=ScalerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)

    @property
    def num_cells(self) -> int:
        """Cells of one surface."""
        return self.lattice.width * self.lattice.height

    @property
    def flows_per_text(self) -> int:
        """Flows that one text starts: an equal part of `max_flows`, at most one for each surface cell."""
        return min(self.num_cells, max(1, self.flow.max_flows // self.training.batch_size))


def _debug() -> EnergyConfig:
    return EnergyConfig(
        name="debug",
        lattice=LatticeConfig(width=8, height=8, depth=4, cell_channels=4),
        flow=FlowConfig(max_flows=256, max_steps=8),
        carrier=CarrierConfig(hidden_size=16, neuron_size=16),
        bridge=BridgeConfig(max_bytes=48, model_size=16, num_heads=2, num_layers=1, num_memory_tokens=4),
        data=DataConfig(max_pairs=128, word_dropout=0.0, num_workers=0),
        optimizer=OptimizerConfig(learning_rate=3e-3),
        training=TrainingConfig(steps=40, batch_size=8, checkpoint_interval=0),
        runtime=RuntimeConfig(device="cpu", num_threads=1),
    )


def _cpu_demo() -> EnergyConfig:
    """About 20 s on one torch thread and one loader worker, on a machine with two cores."""
    return EnergyConfig(
        name="cpu_demo",
        lattice=LatticeConfig(width=16, height=16, depth=8, cell_channels=16),
        flow=FlowConfig(max_flows=1536, max_steps=14),
        carrier=CarrierConfig(hidden_size=64, neuron_size=64),
        bridge=BridgeConfig(max_bytes=96, model_size=64, num_layers=1, num_memory_tokens=8),
        data=DataConfig(max_pairs=2000, num_workers=1),
        optimizer=OptimizerConfig(learning_rate=5e-3),
        training=TrainingConfig(steps=80, batch_size=64, checkpoint_interval=0),
        runtime=RuntimeConfig(device="cpu", num_threads=1),
    )


def _experiment() -> EnergyConfig:
    return EnergyConfig(runtime=RuntimeConfig(precision="bfloat16"))


def _large() -> EnergyConfig:
    return EnergyConfig(
        name="large",
        lattice=LatticeConfig(width=80, height=80, depth=60, cell_channels=64),
        flow=FlowConfig(max_flows=20000, max_steps=120),
        carrier=CarrierConfig(hidden_size=1024, neuron_size=512),
        bridge=BridgeConfig(model_size=512, num_heads=8, num_layers=4, num_memory_tokens=32),
        data=DataConfig(num_workers=8),
        optimizer=OptimizerConfig(learning_rate=1e-4),
        training=TrainingConfig(batch_size=64, accumulation=4),
        runtime=RuntimeConfig(precision="bfloat16"),
    )


NAMED_CONFIGS = {config.name: config for config in (_debug(), _cpu_demo(), _experiment(), _large())}
