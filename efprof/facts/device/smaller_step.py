"""The micro-batch with which a step that ran out of memory would fit, in the user's own settings, and what it saves."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from efprof.artifacts.steps import StepRecord, read_steps
from efprof.facts.device.device_memory import DeviceHistory, Failure
from efprof.facts.device.headroom import MARGIN
from efprof.facts.growth.memory_growth import MemoryGrowth
from efprof.facts.run.run import Run
from efprof.facts.run.run_limits import MemoryFailure, RunLimits
from efprof.facts.run.user_settings import UserSettings
from efprof.model import ConfigurationValue, Fix, Gain, NotRecorded, ThinEvidence, frozen_dataclass
from efprof.units import format_bytes, with_capital

MIN_SPARE = 0.05
"""Of a device, cached and needed by no step: it is the first to be given back, since that costs no computation."""

FULL_STAGES = frozenset({"backward", "optimizer"})
"""From backward on, gradients are there whatever the batch."""

WORDS = "take smaller micro-batches and accumulate gradients over more of them"
WORDS_FOR_ONE = "checkpoint the forward pass, take a smaller model, or compute in lower precision"

NO_TENSOR = (
    "Look at the sizes on that line: what it asked for is no tensor but an object of Python's or an array of NumPy's. "
    "Make less of it at once: in parts, or in a mapped file (`numpy.memmap`). Smaller micro-batches help only if its "
    "size goes with theirs."
)
"""What torch's allocators were not asked for has no part in what a step's tensors take."""


@frozen_dataclass
class MissingMemory:
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
    def budget_bytes(self) -> int:
        """What tensors may take: of what they had, or could have had, less the margin of what is left for the batch."""
        kept, capacity = self.kept_bytes or 0, self.in_use_bytes + self.requested_bytes - self.missing_bytes
        return kept + round((1 - MARGIN) * (capacity - kept))

    def peak_in(self, num_parts: int) -> int | None:
        """What would be in use at most with micro-batches of one part in `num_parts`."""
        scaling = self.scaling_bytes
        return None if scaling is None or self.kept_bytes is None else self.kept_bytes + scaling // num_parts

    def parts_that_fit(self, micro_batch: int) -> int | None:
        """The fewest equal parts that fit; two where nothing tells, None where not even single samples do."""
        parts = list(_parts_of(micro_batch))
        if self.kept_bytes is None:
            return parts[0] if parts else None
        fitting = ((number, self.peak_in(number)) for number in parts)
        return next((number for number, peak in fitting if peak is not None and peak <= self.budget_bytes), None)


def kept_and_usual_bytes(rank_folder: Path, stage: str | None) -> tuple[int | None, int | None]:
    """What the rank's last whole step kept and took besides; `stage` is the one that failed, None if unknown."""
    try:
        records = read_steps(rank_folder)[0]
    except NotRecorded:
        records = []
    # Of light steps nothing was read; of short ones, in recordings of schema version 1, maybe the end alone.
    whole = [one for one in records if {"pre_forward", "post_backward"} <= {here.boundary for here in one.memory}]
    if not whole:
        return None, None
    usual_bytes = max(whole[-1].allocated()) - min(whole[-1].allocated("pre_forward"))
    return _kept(whole[-1], stage), usual_bytes


def missing_memory_at_end(run: Run) -> MissingMemory:
    """Of the request that ended the run, as its events tell it; raises NotRecorded where they do not."""
    failure = run.get(MemoryFailure)
    kept_bytes, usual_bytes = kept_and_usual_bytes(failure.rank_folder, failure.stage)
    return MissingMemory(
        stage=failure.stage,
        in_use_bytes=failure.in_use_bytes or 0,
        requested_bytes=failure.requested_bytes or 0,
        missing_bytes=failure.requested_bytes or 0,
        kept_bytes=kept_bytes,
        usual_bytes=usual_bytes,
        is_for_tensor=failure.is_for_tensor,
    )


def missing_memory_on(run: Run, device: DeviceHistory, failure: Failure) -> MissingMemory:
    """The same of a device whose history shows the failure: free pieces beside tensors serve no one else."""
    parts, at_end = failure.instant.composition, run.find(MemoryFailure)  # None where the run went on
    folder = next((rank for rank in run.rank_folders if rank.name == device.rank), run.rank_folder)
    stage = at_end.stage if at_end else None
    kept_bytes, usual_bytes = kept_and_usual_bytes(folder, stage)
    available = parts.releasable_bytes + (failure.device_free_bytes or 0)
    return MissingMemory(
        stage=stage,
        in_use_bytes=parts.reserved_bytes - parts.free_bytes - parts.pending_bytes,
        requested_bytes=failure.requested_bytes,
        missing_bytes=max(0, failure.requested_bytes - available),
        kept_bytes=kept_bytes,
        usual_bytes=usual_bytes,
    )


def fit_step(run: Run, missing: MissingMemory) -> Fix:
    """The changes of the batch, else of checkpointing; none where a smaller batch would not help."""
    cause = _no_matter_of_batch(run, missing)
    if cause is not None:
        return Fix.by_hand(cause)
    settings = run.get(UserSettings)
    parts = missing.parts_that_fit(settings.samples_per_micro_batch)
    instead = () if settings.checkpointing is None else (settings.checkpointing,)
    if parts is None:
        is_known = missing.scaling_bytes is not None and settings.samples > 0
        known = "Even single samples would not fit. " if is_known else ""
        summary = f"{known}{with_capital(_in_words(instead) or (WORDS_FOR_ONE if known else WORDS))}."
        return Fix(summary=summary, applicability="review" if instead else "manual", changes=instead)
    changes = _batch_changes(settings, parts)
    otherwise = f" Or keep the batch, and {_in_words(instead)}." if instead else ""
    return Fix(
        summary=f"{_batch_words(settings, parts, changes)}{_what_is_left(missing, parts)}{otherwise}",
        applicability="review" if changes else "manual",
        changes=changes,
        may_change="batch statistics, and the order of sums",
    )


def gain_of(run: Run, missing: MissingMemory) -> Gain:
    """What those micro-batches take less than was in use; nothing is claimed where that cannot be computed."""
    samples = run.get(UserSettings).samples_per_micro_batch
    parts = missing.parts_that_fit(samples) if _no_matter_of_batch(run, missing) is None else None
    peak = None if parts is None else missing.peak_in(parts)
    if peak is None:
        return Gain(basis="model", explanation="nothing is predicted: what a smaller step would take is not known")
    return Gain(
        basis="model",
        explanation="what is in use besides what every step keeps shrinks with the micro-batch",
        peak_bytes=max(0, missing.in_use_bytes - peak),
    )


def _parts_of(micro_batch: int) -> Iterator[int]:
    """Powers of two, then single samples: parts of one size keep the samples per step."""
    number = 2
    while number <= micro_batch and micro_batch % number == 0:
        yield number
        number *= 2
    if micro_batch > 1 and number // 2 != micro_batch:
        yield micro_batch


def _kept(record: StepRecord, stage: str | None) -> int:
    """At the most recent instants without activations: before forward, and once backward has freed them.

    The first step's optimizer makes its state, which its own boundaries before do not show.
    """
    kept = max(record.allocated("pre_forward"))
    if stage is None or stage in FULL_STAGES:
        kept = max(kept, *record.allocated("post_backward"))
    made = max(record.allocated("post_optimizer_step"), default=0) - max(record.allocated("post_backward"))
    return kept + (max(0, made) if record.step == 0 else 0)


def _no_matter_of_batch(run: Run, missing: MissingMemory) -> str | None:
    """Why fewer samples would not do, and what would; None where they may."""
    limits = run.find(RunLimits)  # of a snapshot alone no machine is known
    # Most of memory at once: more than all that was in use; one of unknown size, which was more than what was free.
    asked_for = missing.requested_bytes or (limits.total_bytes - missing.in_use_bytes if limits is not None else 0)
    is_on_device = limits is not None and limits.is_device
    if not missing.is_for_tensor and (is_on_device or asked_for > missing.in_use_bytes):
        return NO_TENSOR
    if limits is not None and 0 < limits.total_bytes < missing.requested_bytes:
        return (
            f"Look at the sizes on that line: it asked for {format_bytes(missing.requested_bytes)} at once, and "
            f"{limits.name} has {format_bytes(limits.total_bytes)} in all."
        )
    growth = run.find(MemoryGrowth, ThinEvidence)
    if growth is not None and growth.is_growing:
        return (
            f"Memory grew by {format_bytes(growth.fit.trend.slope)} per step until it was full: find what keeps it, "
            "as the other findings tell. A smaller batch only puts off the end."
        )
    failure = run.find(MemoryFailure)
    if run.cuda_device is not None and failure is not None and failure.library is not None:
        return _room_for_library(failure, missing, run.cuda_device.total_bytes)
    if missing.stage == "optimizer":
        return (
            "Give the optimizer `foreach=False`, whose peak is lower by about the size of the parameters, or use one "
            "with less state. It failed in the optimizer's step, where the batch has no part."
        )
    return None


def _room_for_library(failure: MemoryFailure, missing: MissingMemory, total_bytes: int) -> str | None:
    """Returns None where tensors have most of the device: fewer samples then leave the library room."""
    reserved = missing.in_use_bytes + failure.cached_bytes
    needed = max(failure.peak_bytes, missing.in_use_bytes, (missing.kept_bytes or 0) + (missing.usual_bytes or 0))
    spare = reserved - needed
    if (failure.outside_bytes or 0) > reserved:
        return (
            "Find what uses the device outside of PyTorch: `nvidia-smi` shows its processes. Each CUDA context and "
            "each process group of NCCL has memory of its own."
        )
    if spare >= MIN_SPARE * total_bytes:
        return (
            f"Call `torch.cuda.empty_cache()` once before this line: PyTorch's cache held {format_bytes(spare)} beyond "
            f"a step's peak. Or have {failure.library} make its first call before training fills the device."
        )
    return None


def _batch_changes(settings: UserSettings, parts: int) -> tuple[ConfigurationValue, ...]:
    """Empty where the user's key for the micro-batch is not known."""
    if settings.micro_batch is None:
        return ()
    micro_batch = replace(settings.micro_batch, new=str(settings.samples_per_micro_batch // parts))
    if settings.accumulation is None:
        return (micro_batch,)
    return micro_batch, replace(settings.accumulation, new=str(settings.micro_batches * parts))


def _batch_words(settings: UserSettings, parts: int, changes: tuple[ConfigurationValue, ...]) -> str:
    old, count = settings.samples_per_micro_batch, settings.micro_batches * parts
    if not changes:
        return f"Take {old // parts:,} samples per micro-batch instead of {old:,}, and {count:,} of them per step."
    each = f", and let {count:,} such batches make a step" if settings.accumulation is None else ""
    return f"{with_capital(_in_words(changes))}{each}: a step keeps its {settings.samples:,} samples."


def _what_is_left(missing: MissingMemory, parts: int) -> str:
    peak, kept = missing.peak_in(parts), missing.kept_bytes
    if peak is None or kept is None:
        return " How much that saves is not known, since no step was finished whose memory was read."
    return (
        f" By this model about {format_bytes(peak)} are in use then, of which {format_bytes(kept)} are there whatever "
        "the batch."
    )


def _in_words(changes: tuple[ConfigurationValue, ...]) -> str:
    """`set a to 1 (now 2) and b to 3 (now 4)`; empty where there is none."""
    each = [f"`{change.name}` to {change.new} (now {change.old})" for change in changes]
    return f"set {' and '.join(each)}" if each else ""
