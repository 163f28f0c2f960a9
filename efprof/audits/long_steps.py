"""Work between the updates of a few steps that takes much of the training's time."""

from efprof.facts.run.run import Run
from efprof.facts.steps.long_steps import LongLine, LongSteps
from efprof.facts.steps.run_time import RunTime
from efprof.facts.steps.step_times import StepTimes
from efprof.model import Examination, Finding, Fix, Gain, Narrative
from efprof.units import format_count, format_ms, format_share, in_brackets

MIN_SHARE = 0.2
"""Of the training's time."""
MIN_EVALUATION = 1 / 3
"""Of the training's time. An evaluation on as many samples as are trained on takes a third of training and evaluation
together: on that many it is meant. On a fifth of them after each epoch, as usual, it takes less than a tenth."""
MIN_STEPS = 2
"""What happens once is not what a training spends its time on."""
MAX_USUAL_SHARE = 0.1
"""Of the samples of usual steps: a line with more is a part of all, and a pause of the machine may hit it."""

EVALUATION = "Evaluation"
WRITING = ("json", "pickle", "zipfile", "shutil", "numpy.lib", "safetensors", "torch.serialization", "pathlib")
"""Libraries that write files."""


def long_steps(run: Run) -> Examination:
    """Find work in a few long steps that takes much of the training's time.

    ## What it finds
    A line that made at least two steps more than three times as long as the median, and took a fifth of the training's
    time in them (an evaluation a third): an evaluation, a checkpoint, a log that is written as a whole again.

    ## Why it matters
    The median step does not show it, and to make usual steps faster saves nothing of it.

    ## Fix
    Do it less often, on less, or only what is new.

    ## Predicted gain
    All the time that the long steps spent at the line, spread over all steps.
    """
    found, training_s = run.get(LongSteps), run.get(RunTime).training_s
    num_steps = len(run.get(StepTimes).every)
    guilty = [
        line
        for line in found.lines
        if line.num_steps >= MIN_STEPS
        if 0 < (MIN_EVALUATION if _kind(line)[0] == EVALUATION else MIN_SHARE) * training_s <= line.seconds
        if line.usual_share < MAX_USUAL_SHARE and not ((run.is_on_cuda and line.may_wait) or line.is_profiler)
        if not line.is_rollout
    ]
    return Examination(
        looked_at=f"{format_count(num_steps, 'step')}, {found.num_steps} of them long",
        findings=tuple(_finding(line, line.seconds / training_s, num_steps) for line in guilty),
    )


def _finding(line: LongLine, share: float, num_steps: int) -> Finding:
    what, advice = _kind(line)
    cost = f"{format_ms(1000 * line.seconds)}, {format_share(share)} of the training time,"
    inner = f"{line.inner}: `{line.inner.text}`" if line.inner.text and line.inner != line.blame else "this line itself"
    return Finding(
        blame=line.blame,
        category="time",
        headline=f"{what} between updates takes much of the training time",
        message=f"{cost} went to {format_count(line.num_steps, 'long step')} at {line.blame}.",
        why=f"{what} between updates; most of its time goes to {inner}.",
        fix=Fix.by_hand(f"{advice}: `{line.blame.text}`."),
        gain=Gain.of_step("all the time of long steps at this line", 1000 * line.seconds / num_steps),
        evidence=(
            Narrative.of(
                "While a step lasted three times as long as the median, and 50 ms longer, its stack was sampled every "
                "20 ms. At this line it leaves the frames in which usual steps call `optimizer.step()`. Most of the "
                f"time was at {line.inner}{in_brackets(f'`{line.inside}`' if line.inside else '')}; an evaluation over "
                f"a DataLoader began in {line.num_evaluated} of the {line.num_steps} steps.",
                "It is wrong where the work is what the training is for, as what makes its data.",
            ),
        ),
    )


def _kind(line: LongLine) -> tuple[str, str]:
    """What is done there, and what to do about it."""
    inside = line.inside or ""
    if line.num_evaluated or inside.startswith("torch.nn."):
        return EVALUATION, "Evaluate less often, on fewer samples, or in larger batches"
    if inside.startswith(WRITING):
        return "Writing files", "Write less often, or only what is new"
    return "Work", "Do this less often, or only for what is new"
