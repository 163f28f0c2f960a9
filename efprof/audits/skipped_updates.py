"""Updates that a gradient scaler goes on holding back after it had time to find its scale."""

from efprof.facts.numbers.skipped_steps import MIN_INTERVAL, SEARCH_STEPS, SkippedSteps, how_skips_are_known
from efprof.facts.run.run import Run
from efprof.facts.source.sources import file_of, line_at
from efprof.fixes.settings import set_scaler_arguments
from efprof.model import Examination, Finding, Fix, Gain, NothingToLookAt, SourceFile, SourceLine, ThinEvidence
from efprof.units import format_ms, format_share

MIN_STEPS = 50
"""After the search: in fewer, a few skips in a row look like a habit."""
MIN_SKIPPED = 5
"""A model whose gradients grow while it trains halves its scale a few times more, and then is fine."""
MIN_SHARE = 0.02
HIGH_SHARE = 0.1
"""Less time nobody gets back; torch's own interval makes it a fortieth of that."""
MIN_SCALE = 1.0
"""Below it the scaler makes gradients smaller: it is not the scale that makes them overflow."""


def skipped_updates(run: Run) -> Examination:
    """Find training whose gradient scaler skips many updates.

    ## What it finds
    A `GradScaler` that goes on to skip a fiftieth of the steps or more, because it tries scales that are too large. The
    steps in which it finds its first scale do not count, nor what follows a loss that is not finite by itself.

    ## Why it matters
    A skipped step takes its time and teaches nothing.

    ## Fix
    Begin with the scale that the run fell to (`init_scale`), and try a larger one less often (`growth_interval`).

    ## Predicted gain
    The time of the skipped steps, spread over all steps, less one in 2000.
    """
    found = run.get(SkippedSteps)
    if not found.scales:
        raise NothingToLookAt("a gradient scaler")
    if found.num_steps < MIN_STEPS:
        raise ThinEvidence(
            f"Only {found.num_steps} steps after the first {SEARCH_STEPS}, in which a gradient scaler finds its scale: "
            f"{MIN_STEPS} are needed; record a longer run."
        )
    looked_at = f"{found.num_steps:,} steps under a gradient scaler, of which it skipped {found.num_skipped:,}"
    is_often = found.num_skipped >= MIN_SKIPPED and min(found.share, found.late_share) >= MIN_SHARE
    if not is_often or len(set(found.scales)) == 1:
        return Examination(looked_at=looked_at)
    if found.site is None:
        raise ThinEvidence(f"{looked_at}, but neither the scaler's line nor that of backward was recorded.")
    return Examination(looked_at=looked_at, findings=(_finding(run, found, found.site),))


def _finding(run: Run, found: SkippedSteps, site: str) -> Finding:
    blame = line_at(run, site)
    why = f"the time of the skipped steps, spread over all, less one in {MIN_INTERVAL:,}"
    return Finding(
        blame=blame,
        category="time",
        headline="The gradient scaler skips many updates",
        message=f"Of {found.num_steps:,} steps after the first {SEARCH_STEPS}, the gradient scaler skipped "
        f"{found.num_skipped:,} ({format_share(found.share)}); these updates were lost.",
        why=f"The scale keeps rising to values at which gradients overflow; each such step took "
        f"{format_ms(found.skipped_ms)}.",
        fix=_fix(found, blame, file_of(run, blame)),
        gain=Gain.of_step(why, found.saved_ms, found.saved_interval_ms),
        evidence=(how_skips_are_known(),),
        severity="high" if found.share >= HIGH_SHARE else "medium",
    )


def _fix(found: SkippedSteps, blame: SourceLine, file: SourceFile) -> Fix:
    settings = found.settings
    if found.lowest_scale < MIN_SCALE:
        return Fix.by_hand(
            f"Gradients overflow at a scale of {found.lowest_scale:g} too: run a skipped step under "
            "torch.autograd.set_detect_anomaly(True)."
        )
    if not settings:
        return Fix.by_hand(f"Use `GradScaler(init_scale={found.lowest_scale}, growth_interval={MIN_INTERVAL})`.")
    old, new = ({name: pair[side] for name, pair in settings.items()} for side in (0, 1))
    change = ", ".join(f"{name}={value:.12g}" for name, value in new.items())
    summary = f"Use `GradScaler({change})`, also in a checkpointed scaler state."
    changes = set_scaler_arguments(file, blame.line, old=old, new=new)
    return Fix(summary=summary, applicability="review", changes=changes, may_change="the scale of each step")
