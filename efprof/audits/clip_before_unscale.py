"""Gradients that are clipped while they are still multiplied by a scaler's scale."""

from collections.abc import Sequence

from efprof.facts.numbers.lost_updates import Scaled, clips_under_scaler
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.fixes.step_calls import unscale_above
from efprof.model import Examination, Finding, Fix, Gain, Narrative
from efprof.units import format_count

MIN_SCALED = 2
"""Updates: one may be a step that was broken off."""


def clip_before_unscale(run: Run) -> Examination:
    """Find gradients that are clipped before a gradient scaler has divided them by its scale.

    ## What it finds
    A line that clips gradients at a limit below the scale that they still have, in every update seen.

    ## Why it matters
    The scaler divides them afterwards: the update follows gradients that were cut to a small part of the limit.

    ## Fix
    `scaler.unscale_(optimizer)` above that line.

    ## Predicted gain
    No time and no memory: updates that are clipped at the limit that was asked for.
    """
    clips = clips_under_scaler(run)
    found = {site: [one for one in seen if _is_too_early(one)] for site, seen in clips.items()}
    return Examination(
        looked_at=f"{format_count(len(clips), 'line')} where gradients of a scaler's updates are clipped",
        findings=tuple(_finding(run, site, early) for site, early in found.items() if early),
    )


def _is_too_early(seen: Scaled) -> bool:
    """A limit that changes is computed, of the scale as it is."""
    return seen.num_updates == seen.num_scaled >= MIN_SCALED and not seen.is_varied


def _finding(run: Run, site: str, early: Sequence[Scaled]) -> Finding:
    sources, last = run.get(Sources), early[-1]
    blame = sources.line(site)
    steps = [sources.line(one.step_site) if one.step_site else None for one in early]
    late = sources.line(last.unscale_site) if last.unscale_site else None
    num_updates, limit = sum(one.num_updates for one in early), last.limit
    return Finding(
        blame=blame,
        category="numbers",
        headline="Gradients are clipped while they are still scaled",
        message=f"In all {num_updates:,} updates seen, {blame} clips at {limit / last.scale:.2g}, not {limit}.",
        why=f"The gradients are still multiplied by the scaler's {last.scale:g}, which divides them only "
        f"{f'at {late}' if late else 'in its step'}.",
        fix=Fix.by_hand(
            f"Move `{blame.text.partition('  #')[0]}` below {sources.line(last.unscale_site)}, which unscales."
        )
        if last.unscale_site
        else unscale_above(sources.file(blame.file), blame, steps),
        gain=Gain.none("no time and no memory; the updates are clipped at the limit that was asked for"),
        evidence=(
            *(sources.snippet(step) for step in dict.fromkeys(steps) if step is not None),
            Narrative.of(
                "In steps recorded in full, the scaler came to the step of an optimizer whose gradients had been "
                "clipped since the last backward pass, and had yet to unscale them.",
                "A limit of the scale or more is taken for one that is scaled on purpose, as is one that changes.",
            ),
        ),
        severity="high",
    )
