"""What a line that reads tensor values shows for itself: its time per step, its numbers, how they are known."""

from efprof.facts.scalar_reads import ReadingLine
from efprof.facts.step_times import StepTimes
from efprof.model import Narrative, Number, Numbers, Series, SeriesLine

LEAST_SHARE = 0.01
"""A curve that is lower than a hundredth of the other lies on the axis."""


def read_series(times: StepTimes, line: ReadingLine) -> Series:
    """The time inside the line's reads, step by step, under the time of the step where both can be seen."""
    steps = tuple(float(time.step) for time in times.steady)
    of_reads = SeriesLine(label="reads of this line", x=steps, y=line.ms, is_highlighted=True)
    of_step = SeriesLine(label="step", x=steps, y=tuple(time.total_ms for time in times.steady))
    return Series(
        title="Time inside the reads of this line",
        x_label="step",
        x_unit="",
        y_label="time",
        y_unit="ms",
        lines=(of_reads,) if line.typical_ms < LEAST_SHARE * times.median_ms() else (of_step, of_reads),
    )


def read_numbers(line: ReadingLine, share: float) -> Numbers:
    """How often and how long the line reads."""
    return Numbers(
        title=f"Calls: {', '.join(line.calls)}",
        numbers=(
            Number(label="reads per step", value=line.median_count, unit="count"),
            Number(label="time inside them per step", value=line.typical_ms, unit="ms", interval=line.interval_ms),
            Number(label="share of the median step", value=share * 100, unit="percent"),
            Number(label="steps that read", value=line.share_of_steps * 100, unit="percent"),
        ),
    )


def what_reading_means(line: ReadingLine, *, is_gpu: bool) -> Narrative:
    """What it means, how we know, when it is wrong."""
    here = (
        "Each call was timed where Python made it: the time holds the wait for the GPU's queue and the copy."
        if is_gpu
        else "Each call was timed where Python made it. On the CPU nothing is queued, so this is only the cost of the "
        "calls; how long they would wait on a GPU cannot be told from this run."
    )
    return Narrative(
        title="What it means, how we know, when it is wrong",
        paragraphs=(
            "Python needs the number, so it stops until the device has computed it; it can queue no work meanwhile.",
            f"{here} {len(line.counts)} steps after warm-up and outside profiler windows were looked at.",
            "It is harmless where the program must decide by the value before it can go on, and nothing else could be "
            "queued meanwhile.",
        ),
    )
