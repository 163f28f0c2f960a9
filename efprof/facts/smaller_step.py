"""The micro-batch with which a step that ran out of memory would fit, by what in it grows with the batch."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from efprof.artifacts.steps import StepRecord, read_steps
from efprof.facts.device_memory import DeviceHistory, Failure
from efprof.facts.memory_failure import MemoryFailure
from efprof.facts.run import Run
from efprof.model import NotRecorded

MARGIN: Final = 0.1
"""Of what is left for the batch: a longer one than those recorded. headroom.py leaves as much of the device."""
FULL_STAGES: Final = frozenset({"backward", "optimizer"})
"""From backward on, gradients are there whatever the batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shortage:
    """One failed request, in `stage` where that is known. Bytes: in use then, asked for, and lacking of that.

    `kept_bytes` are in use whatever the batch, `usual_bytes` is what the last whole step had at most besides; both
    are None where no step with its memory was finished.
    """

    stage: str | None
    in_use_bytes: int
    requested_bytes: int
    missing_bytes: int
    kept_bytes: int | None
    usual_bytes: int | None
    is_for_tensor: bool = True

    @property
    def scaling_bytes(self) -> int | None:
        """What grows with the batch, the request included. None where unknown, or the readings contradict each other.

        A step that failed early had not yet taken all it usually takes.
        """
        if self.kept_bytes is None or self.kept_bytes > self.in_use_bytes:
            return None
        return max(self.in_use_bytes + self.requested_bytes - self.kept_bytes, self.usual_bytes or 0)

    @property
    def capacity_bytes(self) -> int:
        """What tensors had, or could have had."""
        return self.in_use_bytes + self.requested_bytes - self.missing_bytes

    @property
    def budget_bytes(self) -> int:
        """What they may take: of what is left for the batch, less the margin."""
        kept = self.kept_bytes or 0
        return kept + round((1 - MARGIN) * (self.capacity_bytes - kept))

    def peak_in(self, num_parts: int) -> int | None:
        """What would be in use at most with micro-batches of one part in `num_parts`."""
        scaling = self.scaling_bytes
        return None if scaling is None or self.kept_bytes is None else self.kept_bytes + scaling // num_parts

    def parts_that_fit(self, micro_batch: int) -> int | None:
        """How many equal parts to cut a micro-batch into, the fewest that fit: halves, then halves of these.

        Two where nothing tells how many are needed; None where not even single samples fit.
        """
        parts = list(_parts_of(micro_batch))
        if self.kept_bytes is None:
            return parts[0] if parts else None
        fitting = ((number, self.peak_in(number)) for number in parts)
        return next((number for number, peak in fitting if peak is not None and peak <= self.budget_bytes), None)


def shortage_in(
    rank_folder: Path, *, stage: str | None, in_use_bytes: int, requested_bytes: int, missing_bytes: int
) -> Shortage:
    """With what the rank's last whole step kept and took besides; `stage` is the one that failed, None if unknown."""
    try:
        records = [record for record in read_steps(rank_folder)[0] if record.memory]
    except NotRecorded:
        records = []
    read = next((record for record in reversed(records) if _has_whole_step(record)), None)
    return Shortage(
        stage=stage,
        in_use_bytes=in_use_bytes,
        requested_bytes=requested_bytes,
        missing_bytes=missing_bytes,
        kept_bytes=None if read is None else _kept(read, stage),
        usual_bytes=None if read is None else _taken(read),
    )


def shortage_at_end(run: Run) -> Shortage:
    """Of the request that ended the run, as its events tell it; raises NotRecorded where they do not."""
    failure = run.get(MemoryFailure)
    requested = failure.requested_bytes or 0
    shortage = shortage_in(
        failure.rank_folder,
        stage=failure.stage,
        in_use_bytes=failure.in_use_bytes or 0,
        requested_bytes=requested,
        missing_bytes=requested,
    )
    return replace(shortage, is_for_tensor=failure.is_for_tensor)


def shortage_on(run: Run, device: DeviceHistory, failure: Failure) -> Shortage:
    """The same of a device whose history shows the failure: free pieces beside tensors serve no one else."""
    parts = failure.instant.composition
    folder = next((rank for rank in run.rank_folders if device.file.startswith(f"{rank.name}/")), run.rank_folder)
    available = parts.releasable_bytes + (failure.device_free_bytes or 0)
    return shortage_in(
        folder,
        stage=_stage_of(run),
        in_use_bytes=parts.reserved_bytes - failure.free_bytes - parts.pending_bytes,
        requested_bytes=failure.requested_bytes,
        missing_bytes=max(0, failure.requested_bytes - available),
    )


def _stage_of(run: Run) -> str | None:
    """In which the run ended; None where it went on after the failure."""
    try:
        return run.get(MemoryFailure).stage
    except NotRecorded:
        return None


def _parts_of(micro_batch: int) -> Iterator[int]:
    """Powers of two, then single samples: parts of one size keep the samples per step."""
    number = 2
    while number <= micro_batch and micro_batch % number == 0:
        yield number
        number *= 2
    if micro_batch > 1 and number // 2 != micro_batch:
        yield micro_batch


def _has_whole_step(record: StepRecord) -> bool:
    """Of light steps nothing was read; of short ones, in recordings of schema version 1, maybe the end alone."""
    return {"pre_forward", "post_backward"} <= {here.boundary for here in record.memory}


def _sizes(record: StepRecord, boundary: str) -> list[int]:
    return [here.allocated_bytes for here in record.memory if here.boundary == boundary]


def _kept(record: StepRecord, stage: str | None) -> int:
    """At the most recent instants without activations: before forward, and once backward has freed them.

    The first step's optimizer makes its state, which its own boundaries before do not show.
    """
    kept = max(_sizes(record, "pre_forward"))
    if stage is None or stage in FULL_STAGES:
        kept = max(kept, *_sizes(record, "post_backward"))
    made = max(_sizes(record, "post_optimizer_step"), default=0) - max(_sizes(record, "post_backward"))
    return kept + (max(0, made) if record.step == 0 else 0)


def _taken(record: StepRecord) -> int:
    return max(here.allocated_bytes for here in record.memory) - min(_sizes(record, "pre_forward"))
