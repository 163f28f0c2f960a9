"""A device of which more than half is never used."""

from dataclasses import replace

from efprof.facts.device.headroom import Headroom, headroom_evidence
from efprof.facts.growth.leaks import backward_line
from efprof.facts.growth.memory_growth import MemoryGrowth
from efprof.facts.run.run import Run
from efprof.facts.run.user_settings import UserSettings
from efprof.facts.source.sources import file_of, line_at
from efprof.facts.steps.step_times import StepTimes, stall_lines
from efprof.fixes.settings import loader_setting, prove_by_fit
from efprof.model import Examination, Finding, Fix, Gain, SourceLine, ThinEvidence
from efprof.units import format_bytes, format_share

MIN_UNUSED = 0.5
"""Below it the batch could not even double, less the margin: too little to change a training for."""
MIN_STEPS = 50
"""Fewer steps may not have met the longest batch yet."""


def unused_headroom(run: Run) -> Examination:
    """Find a device that could take a batch twice as large.

    ## What it finds
    More than half of the device's memory that nothing used at any time, and how large a batch would fit.

    ## Why it matters
    A larger batch spreads each launch, and each read of the weights, over more samples; free memory does nothing.

    ## Fix
    The batch to try, a tenth of the device left free, and the `efprof fit` command that proves it by running.

    ## Predicted gain
    None is predicted: how many more samples per second that makes shows only when it is run.
    """
    headroom, growth = run.get(Headroom), run.find(MemoryGrowth, ThinEvidence)
    run.get(StepTimes).at_least(MIN_STEPS)
    looked_at = f"{headroom.num_steps} steps, which left {format_share(headroom.unused_share)} of the device unused"
    is_growing = growth is not None and growth.is_growing  # the free memory is on its way to being used
    if headroom.unused_share <= MIN_UNUSED or run.run_file.ended == "out_of_memory" or is_growing:
        return Examination(looked_at=looked_at)
    if not headroom.is_even:
        raise ThinEvidence(f"{looked_at}, but steps differ in size: a longer one may need it.")
    if any("empty_cache" in line.call for line in stall_lines(run)):
        raise ThinEvidence(f"{looked_at} when it was read; the cache is emptied between, which hides the peak.")
    if headroom.largest_micro_batch <= headroom.micro_batch:
        return Examination(looked_at=looked_at)
    return Examination(looked_at=looked_at, findings=(_finding(run, headroom),))


def _finding(run: Run, headroom: Headroom) -> Finding:
    site = headroom.loader.site if headroom.loader is not None else None
    blame = line_at(run, site) if site is not None else backward_line(run)
    old, new = headroom.micro_batch, headroom.largest_micro_batch
    return Finding(
        blame=blame,
        category="memory",
        headline="Most of the device's memory is never used",
        message=f"At most {format_bytes(headroom.peak_reserved_bytes)} of the {format_bytes(headroom.total_bytes)} "
        f"of {headroom.device} were reserved in any of {headroom.num_steps} steps.",
        why=f"A micro-batch has {old:,} samples; {new:,} would fit, {new / old:.1f} times as many.",
        fix=_fix(run, headroom, blame),
        gain=Gain.none("none is predicted: how many samples per second a larger batch makes shows when it is run"),
        evidence=headroom_evidence(headroom),
    )


def _fix(run: Run, headroom: Headroom, blame: SourceLine) -> Fix:
    """Of the user's own key where there is one, else of what the loader is given."""
    old, new, loader = headroom.micro_batch, headroom.largest_micro_batch, headroom.loader
    key, change = run.get(UserSettings).micro_batch, None
    if key is not None and key.old == str(old):
        change = replace(key, new=str(new))
    elif loader is not None and loader.site is not None and loader.batch_size == old:
        change = loader_setting(file_of(run, blame), blame.line, "batch_size", old, new)
    proof = prove_by_fit(run.run_file.command, headroom.budget_bytes)
    summary = f"Try {new:,} samples per micro-batch instead of {old:,}. {proof}"
    return Fix.by(change, "review", summary, "the learning rate that fits")
