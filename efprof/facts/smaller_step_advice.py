"""What to set so that a step that ran out of memory fits: under the user's own keys where they are known."""

import contextlib
from typing import Final

from efprof.facts.growth_blame import UnheldGrowth
from efprof.facts.leaks import Leaks
from efprof.facts.memory_growth import MemoryGrowth
from efprof.facts.run import Run
from efprof.facts.run_limits import RunLimits
from efprof.facts.smaller_step import Shortage
from efprof.facts.user_settings import UserSettings
from efprof.model import ConfigurationValue, Fix, Gain, NotRecorded, ThinEvidence
from efprof.units import format_bytes

WORDS: Final = "take smaller micro-batches and accumulate gradients over more of them"
WORDS_FOR_ONE: Final = "checkpoint the forward pass, take a smaller model, or compute in lower precision"

NO_TENSOR: Final = (
    "Look at the sizes on that line: what it asked for is no tensor but an object of Python's or an array of NumPy's. "
    "Make less of it at once, in parts or in a file that is mapped (`numpy.memmap`); smaller micro-batches help only "
    "where its size goes with theirs."
)
"""What torch's allocators were not asked for has no part in what a step's tensors take."""


def fit_step(run: Run, shortage: Shortage) -> Fix:
    """The changes of the batch, else of checkpointing; none where a smaller batch would not help."""
    cause = _no_matter_of_batch(run, shortage)
    if cause is not None:
        return Fix(summary=cause, applicability="manual")
    settings = run.get(UserSettings)
    parts = shortage.parts_that_fit(settings.samples_per_micro_batch)
    instead = () if settings.checkpointing is None else (settings.checkpointing,)
    if parts is None:
        known = "" if shortage.scaling_bytes is None or not settings.samples else _not_even_one(shortage, settings)
        summary = f"{known}{_capital(_in_words(instead) or (WORDS_FOR_ONE if known else WORDS))}."
        return Fix(summary=summary, applicability="review" if instead else "manual", changes=instead)
    changes = _batch_changes(settings, parts)
    otherwise = f" Or keep the batch, and {_in_words(instead)}." if instead else ""
    return Fix(
        summary=f"{_batch_words(settings, parts, changes)}{_what_is_left(shortage, parts)}{otherwise}",
        applicability="review" if changes else "manual",
        changes=changes,
    )


def gain_of(run: Run, shortage: Shortage) -> Gain:
    """What those micro-batches take less than was in use; nothing is claimed where that cannot be computed."""
    samples = run.get(UserSettings).samples_per_micro_batch
    parts = shortage.parts_that_fit(samples) if _no_matter_of_batch(run, shortage) is None else None
    peak = None if parts is None else shortage.peak_in(parts)
    if peak is None:
        return Gain(basis="model", explanation="nothing is claimed: what a smaller step would take is not known")
    return Gain(
        basis="model",
        explanation="what is in use besides what every step keeps shrinks with the micro-batch",
        peak_bytes=max(0, shortage.in_use_bytes - peak),
    )


def _no_matter_of_batch(run: Run, shortage: Shortage) -> str | None:
    """Why fewer samples would not do, and what would; None where they may."""
    with contextlib.suppress(NotRecorded):  # of a snapshot alone no machine is known
        limits = run.get(RunLimits)
        if not shortage.is_for_tensor and limits.is_device:
            return NO_TENSOR
        if 0 < limits.total_bytes < shortage.requested_bytes:
            return (
                f"Look at the sizes on that line: it asked for {format_bytes(shortage.requested_bytes)} at once, and "
                f"{limits.name} has {format_bytes(limits.total_bytes)} in all."
            )
    with contextlib.suppress(ThinEvidence, NotRecorded):
        growth = run.get(MemoryGrowth)
        if growth.is_growing:
            slope = format_bytes(growth.fit.trend.slope)
            return (
                f"Memory grew by {slope} with every step until it was full: {_what_to_mend(run)}; a smaller batch only "
                "puts the end off."
            )
    if not shortage.is_for_tensor and _is_most_of_memory(run, shortage):
        return NO_TENSOR
    if shortage.stage == "optimizer":
        return (
            "The batch has no part in the optimizer's step, in which it failed: give the optimizer `foreach=False`, "
            "which takes about the size of the parameters less at its peak, or take one with less state."
        )
    return None


def _is_most_of_memory(run: Run, shortage: Shortage) -> bool:
    """Whether the request was for more than all that was in use; one of unknown size for more than what was free."""
    with contextlib.suppress(NotRecorded):
        least = shortage.requested_bytes or run.get(RunLimits).total_bytes - shortage.in_use_bytes
        return least > shortage.in_use_bytes
    return False


def _what_to_mend(run: Run) -> str:
    """The likeliest line, where more is known than the loop."""
    with contextlib.suppress(ThinEvidence, NotRecorded):
        for leak in run.get(Leaks).leaks:
            return f"mend {leak.blame}, where `{leak.kept[0].name}` keeps more and more"
        unheld = run.get(UnheldGrowth)
        if not unheld.is_guess:
            return f"mend {unheld.blame} ({unheld.why})"
    return "find what keeps it"


def _batch_changes(settings: UserSettings, parts: int) -> tuple[ConfigurationValue, ...]:
    """Empty where the user's key for the micro-batch is not known."""
    if settings.micro_batch is None:
        return ()
    micro_batch = settings.micro_batch.becomes(settings.samples_per_micro_batch // parts)
    if settings.accumulation is None:
        return (micro_batch,)
    return micro_batch, settings.accumulation.becomes(settings.micro_batches * parts)


def _batch_words(settings: UserSettings, parts: int, changes: tuple[ConfigurationValue, ...]) -> str:
    old, count = settings.samples_per_micro_batch, settings.micro_batches * parts
    if not changes:
        return f"Take {old // parts:,} samples per micro-batch instead of {old:,}, and {count:,} of them per step."
    each = f", and let {count:,} such batches make a step" if settings.accumulation is None else ""
    return f"{_capital(_in_words(changes))}{each}: a step keeps its {settings.samples:,} samples."


def _what_is_left(shortage: Shortage, parts: int) -> str:
    peak, kept = shortage.peak_in(parts), shortage.kept_bytes
    if peak is None or kept is None:
        return " How much that saves is not known, since no step was finished whose memory was read."
    return (
        f" By this model about {format_bytes(peak)} are in use then, of which {format_bytes(kept)} are there whatever "
        "the batch."
    )


def _not_even_one(shortage: Shortage, settings: UserSettings) -> str:
    peak = shortage.peak_in(max(1, settings.samples_per_micro_batch))
    assert peak is not None
    return (
        f"Even single samples would take about {format_bytes(peak)}, more than the "
        f"{format_bytes(max(0, shortage.budget_bytes))} there is for them. "
    )


def _in_words(changes: tuple[ConfigurationValue, ...]) -> str:
    """`set a to 1 (now 2) and b to 3 (now 4)`; empty where there is none."""
    each = [f"`{change.name}` to {change.new} (now {change.old})" for change in changes]
    return f"set {' and '.join(each)}" if each else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
