"""What a loader that is waited for shows for itself: the wait in each step, the numbers behind the advice."""

from efprof.facts.input_waits import InputWaits
from efprof.facts.step_times import StepTimes
from efprof.model import Evidence, Gain, Narrative, Number, Numbers, Series, SeriesLine, Severity

HIGH_SHARE = 0.3
LEAST_GAIN = 0.03
"""More workers that win less than 3 % of the step are no advice: runs differ by as much."""


def wait_severity(waits: InputWaits, certain_share: float, gain: Gain) -> Severity:
    """High only where the steps wait that long for sure, and the fix wins something for sure."""
    least_ms = gain.step_ms_interval[0] if gain.step_ms_interval else gain.step_ms or 0.0
    return "high" if certain_share >= HIGH_SHARE and least_ms >= LEAST_GAIN * waits.step_ms else "medium"


def wait_evidence(times: StepTimes, waits: InputWaits) -> tuple[Evidence, ...]:
    """All of it, the picture first."""
    return wait_series(times, waits), wait_numbers(waits), what_waiting_means(waits)


def wait_series(times: StepTimes, waits: InputWaits) -> Series:
    """The wait and the rest of each steady step, stacked; new epochs are marked where they cost."""
    steps = tuple(float(time.step) for time in times.steady)
    wait_ms = tuple(time.of("data") for time in times.steady)
    rest_ms = tuple(time.total_ms - time.of("data") for time in times.steady)
    return Series(
        title="Time per step",
        x_label="step",
        x_unit="",
        y_label="time",
        y_unit="ms",
        lines=(
            SeriesLine(label="waiting for data", x=steps, y=wait_ms, is_highlighted=True),
            SeriesLine(label="everything else", x=steps, y=rest_ms),
        ),
        is_stacked=True,
        marks=tuple((float(step), "workers started") for step in waits.restarts),
    )


def wait_numbers(waits: InputWaits) -> Numbers:
    """What the advice was computed from."""
    return Numbers(
        title="The loader and the machine",
        numbers=(
            Number(label="wait for data, mean", value=waits.data_ms, unit="ms", interval=waits.data_interval_ms),
            Number(label="rest of the step, median", value=waits.rest_ms, unit="ms"),
            Number(label="one worker needs for a step's data", value=waits.production_ms, unit="ms"),
            Number(label="CPU time of the training process", value=waits.cpu_ms, unit="ms"),
            Number(label="workers now", value=waits.num_workers, unit="count"),
            Number(label="processors", value=waits.num_cpus, unit="count"),
        ),
    )


def what_waiting_means(waits: InputWaits) -> Narrative:
    """What it means, how we know, when it is wrong."""
    who = (
        f"{waits.num_workers} worker processes make the batches, more slowly than the training uses them"
        if waits.num_workers
        else "The training process makes each batch itself, and trains nothing meanwhile"
    )
    return Narrative(
        title="What it means, how we know, when it is wrong",
        paragraphs=(
            f"{who}. The time between asking the loader for a batch and getting it was measured in every step.",
            "The prediction takes the slowest of three: the rest of the step, one worker's time divided by the "
            "workers, and all CPU time divided by the processors. Its interval reaches from workers that cost the "
            "training nothing to workers that share its cores and memory, and the prediction lies midway.",
            "It is wrong where batches wait for a disk or a network that more workers cannot make faster, and where "
            "the data set holds a lock.",
        ),
    )
