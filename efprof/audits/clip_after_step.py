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
    gradients, and before the next backward pass.

    ## Why it matters
    The update took the gradients as large as they were: one outlier is enough to throw the training off its course.

    ## Fix
    Clip between `backward()` and the optimizer's `step()`.

    ## Predicted gain
    No time and no memory: updates that are bounded.
    """
    clips = gradient_clips(run)
    late = [clip for clip in clips if clip.num_calls == clip.num_late >= MIN_LATE]
    return Examination(
        looked_at=f"{format_count(len(clips), 'line')} where gradients are clipped",
        findings=tuple(_finding(run, clip) for clip in late),
    )


def _finding(run: Run, clip: Clips) -> Finding:
    sources = run.get(Sources)
    blame = sources.line(clip.site)
    step = sources.line(clip.step_site) if clip.step_site else None
    return Finding(
        blame=blame,
        category="numbers",
        headline="Gradients are clipped after the update",
        message=f"All {clip.num_late} calls seen at {blame} clip gradients that the optimizer has used already.",
        why=f"The update at {step or 'the step'} came first, with gradients of any size.",
        fix=Fix.by_hand(f"Move `{blame.text.partition('  #')[0]}` up, between `backward()` and {step or 'the step'}."),
        gain=Gain.none("no time and no memory; the updates are bounded"),
        evidence=(
            *([sources.snippet(step)] if step else []),
            Narrative.of(
                "In steps recorded in full, each gradient was the same tensor, and as often written to, as when the "
                "optimizer stepped.",
            ),
        ),
        severity="high",
    )
