"""Trains one phase of the checklist under watch, in a process of its own, and prints what was seen as JSON.

python -m benchmarks.stability_watch PHASE DEVICE DATASET OUT
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.stability_checks import Seen
from benchmarks.stability_phases import Phase, phases_of
from benchmarks.stability_reference import ReferenceWork
from efprof.recorder.loop.device import Memory
from energy_flow.data.dataset import PairDataset
from energy_flow.training.energy_trainer import EnergyTrainer
from energy_flow.training.observation import METRICS_NAME

NUM_PROFILED = 4
"""The last steps of a phase are looked at for host reads; the profiler's memory and time count to nothing else."""

READING_OPERATORS = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero"})
"""What makes the host wait for a device; the fused AdamW's own reads of its step counters on a CPU do not count."""

FORBIDDEN_READ = "synchronizing CUDA operation"
"""In the error that torch raises for a host read where they are forbidden."""


def main() -> None:
    """Train, and print what was seen even where the training raised."""
    name, device, dataset, out = sys.argv[1:]
    (phase,) = (phase for phase in phases_of(device) if phase.name == name)
    print(json.dumps(asdict(watch(phase, device, Path(dataset), Path(out)))))


def watch(phase: Phase, device: str, dataset: Path, out: Path) -> Seen:
    """Train the phase with hooks around its steps."""
    config = phase.config(device)
    seen = Seen(
        batch_size=config.training.batch_size,
        clip_norm=config.optimizer.gradient_clip_norm,
    )
    if device == "cuda":
        # Memory's source is chosen at the first reading: without this, the host's.
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch has no types there
    memory, pairs = Memory(), PairDataset(dataset, config)
    reference = ReferenceWork(config, pairs) if device == "cpu" else None
    before = memory.read()[0]
    trainer = EnergyTrainer(config, out=out)
    observer = _Observer(trainer, config.training.steps, memory, before, reference)
    try:
        with observer.watching():
            trainer.train(pairs)
    except (RuntimeError, MemoryError) as error:  # out of memory, and reads that are forbidden on CUDA
        seen.error = next(iter(str(error).splitlines()), type(error).__name__)
        if FORBIDDEN_READ in seen.error:
            observer.reads = [seen.error]
    observer.write_to(seen)
    lines = [json.loads(line) for line in (out / METRICS_NAME).read_text(encoding="utf-8").splitlines()]
    seen.loss = [line["loss"] for line in lines]
    seen.gradient_norm = [line["gradient_norm"] for line in lines]
    seen.is_skipped = [line["is_skipped"] for line in lines]
    return seen


class _Observer:
    """Hooks that note memory, times and bounds; values stay on the device until training is over.

    All room for them is made before the first step: what watching takes must not look like what training takes.
    """

    def __init__(
        self, trainer: EnergyTrainer, num_steps: int, memory: Memory, before_bytes: int, reference: ReferenceWork | None
    ) -> None:
        self.trainer, self.memory, self.before_bytes = trainer, memory, before_bytes
        self.is_cuda = trainer.device.type == "cuda"
        self.clock = time.process_time if trainer.device.type == "cpu" else time.perf_counter
        self.on_host = np.zeros((num_steps, 4))  # peak bytes, retained bytes, ms of the step, ms of the reference work
        self.reference = reference
        self.on_device = torch.zeros(num_steps, 3, device=trainer.device)  # clipped norm, GRU input, GRU state
        self.num_steps = 0
        self.peak_bytes = 0
        self.last = self.clock()
        self.profiler: Any = None
        self.reads: list[str] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        optimizer, model = self.trainer.optimizer, self.trainer.model
        handles = [
            optimizer.register_step_pre_hook(lambda *_: self.before_step()),
            optimizer.register_step_post_hook(lambda *_: self.after_step()),
            model.register_forward_hook(lambda *_: self.note_memory()),
            model.flows.carrier.cell.register_forward_hook(lambda _, *seen: self.note_bounds(*seen)),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            if self.is_cuda:
                torch.cuda.set_sync_debug_mode("default")  # an error in the last steps would leave reads forbidden

    def note_memory(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self.memory.read()[0] - self.before_bytes)

    def note_bounds(self, inputs: tuple[Tensor, ...], hidden: Tensor) -> None:
        if self.trainer.model.training:
            largest = torch.stack([inputs[0].detach().abs().max().float(), hidden.detach().abs().max().float()])
            bounds = self.on_device[self.num_steps, 1:]
            torch.maximum(bounds, largest, out=bounds)

    def before_step(self) -> None:
        self.note_memory()
        gradients = [weight.grad for weight in self.trainer.model.parameters() if weight.grad is not None]
        self.on_device[self.num_steps, 0] = torch.stack(torch._foreach_norm(gradients)).norm()

    def after_step(self) -> None:
        now = self.clock()
        self.note_memory()
        peak = torch.cuda.max_memory_allocated() if self.is_cuda else self.peak_bytes
        retained = self.memory.read()[0] - self.before_bytes
        reference_ms = self.reference.measure(self.num_steps) if self.reference else 1.0
        self.on_host[self.num_steps] = peak, retained, 1000 * (now - self.last), reference_ms
        self.num_steps += 1
        self.peak_bytes = 0
        if self.is_cuda:
            torch.cuda.reset_peak_memory_stats()
        self.look_for_reads()
        self.last = self.clock()

    def look_for_reads(self) -> None:
        """Forbid them for a while on CUDA, where torch can; elsewhere see which operators a step runs."""
        is_looked_at = len(self.on_host) - NUM_PROFILED <= self.num_steps < len(self.on_host)
        if self.is_cuda:
            torch.cuda.set_sync_debug_mode("error" if is_looked_at else "default")
        elif is_looked_at and self.profiler is None:
            self.profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            self.profiler.start()
        elif not is_looked_at and self.profiler is not None:
            self.profiler.stop()
            self.reads = sorted({event.name for event in self.profiler.events() if _is_read(event)})
            self.profiler = None

    def write_to(self, seen: Seen) -> None:
        """Hand over all that was noted."""
        on_host, on_device = self.on_host[: self.num_steps], self.on_device[: self.num_steps].tolist()
        seen.peak_bytes, seen.retained_bytes, seen.step_ms, seen.reference_ms = on_host[:-NUM_PROFILED].T.tolist()
        seen.clipped_norm, seen.gru_input, seen.gru_hidden = ([row[column] for row in on_device] for column in range(3))
        seen.reads = self.reads


def _is_read(event: Any) -> bool:
    if event.name not in READING_OPERATORS:
        return False
    while event is not None and event.name != "aten::_fused_adamw_":
        event = event.cpu_parent
    return event is None


if __name__ == "__main__":
    main()
