"""A line whose time goes to Python, where one operation on whole arrays would do."""

from efprof.facts.growth.grown_line import GrownLines
from efprof.facts.run.run import Run
from efprof.facts.steps.long_steps import LongSteps
from efprof.facts.steps.step_times import StepTimes, within_idle
from efprof.facts.time.python_lines import PythonLine, PythonLines
from efprof.model import Examination, Finding, Fix, Gain, Narrative, NothingToLookAt, ThinEvidence, UnreadableInput
from efprof.units import format_count, format_ms, format_share, format_value


def python_bound_line(run: Run) -> Examination:
    """Find lines whose time goes to Python itself.

    ## What it finds
    A fifth of the step at a line, or in a loop over items, that runs no operator meanwhile, or at least a hundred small
    ones: in the training loop, in `__getitem__` or in `collate_fn`, where the training process makes its batches. In
    the training loop also a line that has a library write, draw or log, as `torch.save` does.

    ## Why it matters
    Python takes about as long to start an operation on one number as on a thousand.

    ## Fix
    One operation on the whole batch; an array that is built once, before the training; or doing it less often.

    ## Predicted gain
    At most the time that samples found there, with 95 % of the chance.
    """
    if run.is_on_cuda:  # there `host_computes` tells what the device waits for
        raise NothingToLookAt("a training on a CPU")
    found = run.get(PythonLines)
    looked_at = f"{format_count(found.num_samples, 'sample')} of the training's lines"
    grown = run.find(GrownLines, ThinEvidence, UnreadableInput)
    slowing = grown.line.blame.key if grown and grown.line else None  # what `step_slowdown` tells
    long, num_steps = run.find(LongSteps), len(run.get(StepTimes).every)
    long_ms = {line.inner.key: 1000 * line.seconds for line in long.lines} if long else {}  # what `long_steps` tells
    guilty = [
        line
        for line in found.lines
        if line.blame.key != slowing and line.ms * num_steps > long_ms.get(line.blame.key, 0.0)
    ]
    return Examination(looked_at=looked_at, findings=tuple(_finding(run, line) for line in guilty))


def _finding(run: Run, line: PythonLine) -> Finding:
    share = format_share(line.ms / run.get(StepTimes).median_ms())
    what, why = line.function or "Python", "This line runs no operator for most of its time: Python does its work."
    headline = f"{'A library function' if line.function else 'Python'} takes much of each step"
    if line.is_aside:
        why = "It runs in each step, and the training uses nothing that it returns."
    if line.num_operators:
        passes = " and their backward pass" if line.stage == "forward" else ""
        what = f"{format_value(round(line.num_operators), 'count')} small operators{passes}"
        why = "Python starts an operator for each item here, which takes longer than the operator itself."
        headline = "Many small operators take much of each step"
    found = "its own and its backward pass's" if line.num_operators else "that samples found there"
    gain = Gain.of_step(f"at most the time {found}", line.ms, line.interval_ms)
    return Finding(
        blame=line.blame,
        category="time",
        headline=headline,
        message=f"{format_ms(line.ms)} of each step ({share}) go to {what}, at {line.blame}.",
        why=why,
        fix=Fix.by_hand(_advice(line)),
        gain=within_idle(run, gain),
        evidence=(
            Narrative.of(
                "A thread looked up to a thousand times a second at which line the training is, in steps outside "
                "of windows. Operators are those that a profiler window saw start at the line.",
                "It is wrong where the line waits for something, as for a file or another process.",
            ),
        ),
    )


def _advice(line: PythonLine) -> str:
    """By what the line does."""
    if line.is_aside:
        return "Do this once in many steps, or once after each epoch."
    if line.loop is not None:
        rarely = ", or do it once before the training" if line.stage == "data" else ""
        if line.stage == "other" and not line.num_operators:  # no model's work: a log, a plot, a file
            rarely = ", or do it every so many steps"
        return f"Replace the loop at {line.loop} by one operation on the whole array{rarely}."
    if line.makes_array and line.is_of_step:
        return "Compute this array from whole arrays, without a loop of Python over their items."
    if line.makes_array:
        return "Build this array once, before the training, and index it here."
    if line.function:
        return f"Have `{line.function}` do less here, use one operation on arrays, or move this out of the step."
    return "Move this out of the step, or do it every so many steps."
