"""How a device's memory divides into what every step keeps and what grows with the batch, and which batch would fit."""

import statistics
from collections.abc import Sequence
from typing import Self

from efprof.artifacts.events import LoaderBuilt
from efprof.artifacts.readings import read_device_use
from efprof.artifacts.steps import StepRecord
from efprof.facts.input.input_waits import loader_of
from efprof.facts.run.run import Run
from efprof.facts.run.run_limits import allowed_bytes, device_name
from efprof.facts.steps.step_times import StepTimes
from efprof.model import (
    CUDA_DEVICE,
    Evidence,
    Narrative,
    NothingToLookAt,
    NotRecorded,
    Numbers,
    ThinEvidence,
    frozen_dataclass,
)
from efprof.units import format_bytes, format_share

MARGIN = 0.1
"""Of what the program may take, left free: fragments, a longer batch than any so far, and what libraries allocate
besides."""
EVEN_SHARE = 0.9
"""Of the steps that must have the commonest size; the others may be smaller, as the last batch of an epoch is."""
MAX_UNEVENNESS = 1.1
"""What the largest step's forward pass may keep, over the median's: sequences whose lengths differ go beyond."""
ROUND_FROM, ROUND_TO = 16, 8
"""From this size on, a batch is rounded down to a multiple: matrices of such sizes are the fast ones."""


@frozen_dataclass
class Headroom:
    """Memory of the first device, in bytes.

    `total_bytes` is all of it, or as much of it as the program lets itself take; `outside_bytes` of that is used by
    other processes, the CUDA context and libraries; `fixed_bytes` is allocated when the
    forward pass begins, whatever the batch; the rest of `peak_reserved_bytes` belongs to `micro_batch` samples.
    """

    device: str
    total_bytes: int
    outside_bytes: int
    peak_reserved_bytes: int
    fixed_bytes: int
    micro_batch: int
    num_steps: int
    is_even: bool
    loader: LoaderBuilt | None

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded without CUDA or readings, ThinEvidence where no step tells how many samples it took."""
        times, capacity = run.get(StepTimes), device_capacity(run)
        if capacity is None:
            raise NothingToLookAt(CUDA_DEVICE)
        steady = [time.record for time in times.steady if time.record.memory]
        fixed = [size for record in steady for size in record.allocated("pre_forward")]
        if not fixed:
            raise NotRecorded("steps.jsonl holds no memory at the start of a forward pass; record a longer run.")
        micro_batch = statistics.mode(record.samples // max(1, record.micro_batches) for record in steady)
        if not micro_batch:
            raise ThinEvidence("the number of samples in a step is not known: the loop's batches come from no loader.")
        readings = [here for time in times.every for here in time.record.memory]
        device = run.run_file.devices[0]
        total = allowed_bytes(run, device)
        return cls(
            device=device_name(run, device),
            total_bytes=total,
            outside_bytes=total - capacity,
            peak_reserved_bytes=max(here.reserved_bytes for here in readings),
            fixed_bytes=round(statistics.median(fixed)),
            micro_batch=micro_batch,
            num_steps=len(steady),
            is_even=_is_even(steady),
            loader=loader_of(run, steady),
        )

    @property
    def unused_share(self) -> float:
        """Of what it may take: what neither this program nor anything else had at any time."""
        return max(0.0, 1 - (self.outside_bytes + self.peak_reserved_bytes) / self.total_bytes)

    @property
    def sample_bytes(self) -> float:
        return max(1.0, (self.peak_reserved_bytes - self.fixed_bytes) / self.micro_batch)

    @property
    def budget_bytes(self) -> int:
        return round((1 - MARGIN) * self.total_bytes) - self.outside_bytes

    @property
    def largest_micro_batch(self) -> int:
        """The largest that stays below `budget_bytes` by this line; 0 where not even the fixed part does."""
        largest = max(0, int((self.budget_bytes - self.fixed_bytes) // self.sample_bytes))
        return largest if largest < ROUND_FROM else largest // ROUND_TO * ROUND_TO


def device_capacity(run: Run) -> int | None:
    """Returns what PyTorch can take of the device beside the most that anything else used; None without CUDA.

    Read at the first step, and late: NCCL's buffers and most workspaces come after it.
    """
    device = run.cuda_device
    if device is None:
        return None
    allowed = allowed_bytes(run, device)
    if device.free_bytes is None:
        return allowed
    reserved = (here.reserved_bytes for time in run.get(StepTimes).every for here in time.record.memory)
    outside = [one.outside_bytes for one in read_device_use(run.rank_folder) if one.device == device.index]
    free = min([device.free_bytes + next(reserved, 0), *(device.total_bytes - each for each in outside)])
    return min(allowed, free)


def smaller_micro_batch(run: Run) -> str:
    """What to do where the device is full: the micro-batch that leaves a tenth of it free, as far as it is known."""
    headroom = run.find(Headroom, ThinEvidence)
    if headroom is None:
        return "Take a smaller micro-batch and accumulate gradients over more of them."
    old, new = headroom.micro_batch, headroom.largest_micro_batch
    instead = f"{new:,} samples per micro-batch instead of {old:,}" if 0 < new < old else f"fewer samples than {old:,}"
    return f"Take {instead}, and accumulate gradients over more micro-batches."


def headroom_evidence(headroom: Headroom) -> tuple[Evidence, ...]:
    return (
        Numbers.of(
            "What a batch takes of the device",
            (f"memory of {headroom.device}", headroom.total_bytes, "bytes"),
            ("used by others, or outside of the allocator", headroom.outside_bytes, "bytes"),
            ("reserved at most", headroom.peak_reserved_bytes, "bytes"),
            ("kept whatever the batch", headroom.fixed_bytes, "bytes"),
            ("taken by each sample", headroom.sample_bytes, "bytes"),
            ("samples that would fit", headroom.largest_micro_batch, "count"),
        ),
        Narrative.of(
            "What is allocated when a forward pass begins (parameters, optimizer state, what else the program keeps) "
            f"does not depend on the batch: {format_bytes(headroom.fixed_bytes)}. All else of the reserved peak is "
            f"taken to grow with it, and {format_share(MARGIN)} of what the program may take stays free.",
            "It is wrong where memory grows faster than the batch, where other steps than the recorded ones are larger "
            "(validation, another stage of a curriculum), and where the batch was chosen for what the model learns.",
        ),
    )


def _is_even(steady: Sequence[StepRecord]) -> bool:
    """Whether every step does the same: as many samples, and as much kept for backward."""
    sizes = [(record.samples, record.micro_batches) for record in steady]
    usual = statistics.mode(sizes)
    is_same = sizes.count(usual) >= EVEN_SHARE * len(sizes) and all(size[0] <= usual[0] for size in sizes)
    read = (record.allocated() for record in steady)
    kept = [max(each) - min(each) for each, size in zip(read, sizes, strict=True) if size == usual]
    kept = [rise for rise in kept if rise]
    return is_same and (not kept or max(kept) <= MAX_UNEVENNESS * statistics.median(kept))
