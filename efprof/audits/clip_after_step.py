"""Gradients that are clipped after the update that they were for."""

from efprof.facts.numbers.lost_updates import Clips, gradient_clips
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.model import Examination, Finding, Fix, Gain, Narrative
from efprof.units import format_count

MIN_LATE = 2
"""Calls: one may be a step that was broken off."""


def clip_after_step(run: Run) -> Examination:
    """Find gradients that are clipped too late.

    ## What it finds
    A line whose every `clip_grad_norm_` or `clip_grad_value_` came after the optimizer had stepped with these very
    gradients, and before the next backward pass; or when they had been cleared, and there were none.

    ## Why it matters
    The update took the gradients as large as they were: one outlier is enough to throw the training off its course.

    ## Fix
    Clip between `backward()` and the optimizer's `step()`.

    ## Predicted gain
    No time and no memory: updates that are bounded.
    """
    clips = gradient_clips(run)
    late = [clip for clip in clips if clip.num_calls == max(clip.num_late, clip.num_empty) >= MIN_LATE]
    return Examination(
        looked_at=f"{format_count(len(clips), 'line')} where gradients are clipped",
        findings=tuple(_finding(run, clip) for clip in late),
    )


def _finding(run: Run, clip: Clips) -> Finding:
    sources = run.get(Sources)
    blame = sources.line(clip.site)
    step = sources.line(clip.step_site) if clip.step_site else None
    is_empty, text = clip.num_empty > clip.num_late, blame.text.partition("  #")[0]
    what = "find no gradient to clip" if is_empty else "clip gradients that the optimizer has used already"
    first = "No backward pass has made any by then" if is_empty else f"The update at {step or 'the step'} came first"
    known = "each gradient was the same tensor, and as often written to, as when the optimizer stepped"
    return Finding(
        blame=blame,
        category="numbers",
        headline="Gradients are clipped when there are none" if is_empty else "Gradients are clipped after the update",
        message=f"All {clip.num_calls} calls seen at {blame} {what}.",
        why=f"{first}, with gradients of any size."
        if not is_empty
        else f"{first}: updates follow gradients of any size.",
        fix=Fix.by_hand(
            f"Move `{text}` {'down' if is_empty else 'up'}, between `backward()` and {step or 'the optimizer step'}."
        ),
        gain=Gain.none("no time and no memory; the updates are bounded"),
        evidence=(
            *([sources.snippet(step)] if step else []),
            Narrative.of(f"In steps recorded in full, {'no parameter had a gradient' if is_empty else known}."),
        ),
        severity="high",
    )
