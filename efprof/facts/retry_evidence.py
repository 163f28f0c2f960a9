"""What allocation retries show for themselves: when they came, for whom, and what other settings would make of it."""

from collections import Counter

from efprof.facts.allocation_retries import AllocationRetries
from efprof.facts.device_evidence import DEFAULT, recorded_rows
from efprof.facts.retry_advice import RetryAdvice, RetryTrials
from efprof.facts.sources import place_of
from efprof.model import Evidence, Narrative, Number, Numbers, Series, SeriesLine, Table
from efprof.units import format_interval, format_ms, in_brackets

MOST_LINES = 6


def retry_evidence(retries: AllocationRetries, sites: Counter[str | None], advice: RetryAdvice) -> tuple[Evidence, ...]:
    """All of it, the steps first; `sites` are the requests of a recorded history that were tried again."""
    settings = () if advice.tried is None else (_trials(advice.tried),)
    return (_series(retries), _numbers(retries), *_requests(sites), *settings, _narrative(bool(sites)))


def how_much_slower(retries: AllocationRetries) -> str:
    """A clause of the message; empty where either kind of step is too rare to tell."""
    if retries.slower_ms is None or retries.slower_interval_ms is None:
        return ""
    low, high = retries.slower_interval_ms
    if low <= 0:
        return "; steps with a retry take no longer that could be told"
    ends = in_brackets(format_interval(low, high, "ms"))
    return f"; such a step takes {format_ms(retries.slower_ms)} longer{ends}"


def _series(retries: AllocationRetries) -> Series:
    counted = SeriesLine(
        label="retries",
        x=tuple(float(step) for step, _ in retries.by_step),
        y=tuple(float(count) for _, count in retries.by_step),
        is_highlighted=True,
    )
    return Series(
        title="Retries in the steps that had any",
        x_label="step",
        x_unit="count",
        y_label="retries",
        y_unit="count",
        lines=(counted,),
    )


def _numbers(retries: AllocationRetries) -> Numbers:
    numbers = [
        Number(label="steps after warm-up", value=float(retries.num_steps), unit="count"),
        Number(label="steps with a retry", value=float(len(retries.by_step)), unit="count"),
    ]
    numbers += [
        Number(label=f"retries in the {stage} stage", value=float(count), unit="count")
        for stage, count in retries.by_stage
    ]
    if retries.slower_ms is not None:
        numbers.append(
            Number(
                label="steps with a retry take longer by",
                value=retries.slower_ms,
                unit="ms",
                interval=retries.slower_interval_ms,
            )
        )
    return Numbers(title="Retries of the allocator", numbers=tuple(numbers))


def _requests(sites: Counter[str | None]) -> tuple[Table, ...]:
    if not sites:
        return ()
    rows = tuple(
        ("no line of yours (a backward pass runs without Python)" if site is None else place_of(site), float(count))
        for site, count in sites.most_common(MOST_LINES)
    )
    return (
        Table(
            title="Whose request was tried again, in the recorded history",
            columns=("line", "retries"),
            units=("", "count"),
            rows=rows,
        ),
    )


def _trials(tried: RetryTrials) -> Table:
    """The recorded settings first."""
    outcomes = recorded_rows(tried.what_if)
    outcomes += [(trial.configuration or DEFAULT, trial.outcome) for trial in tried.trials]
    return Table(
        title="The recorded requests under other settings (PYTORCH_CUDA_ALLOC_CONF)",
        columns=("settings", "retries", "peak reserved", "out of memory"),
        units=("", "count", "bytes", ""),
        rows=tuple(
            (
                name,
                float(outcome.calls.num_retries),
                float(outcome.peak_reserved_bytes),
                "yes" if outcome.is_out_of_memory else "no",
            )
            for name, outcome in outcomes
        ),
    )


def _narrative(has_history: bool) -> Narrative:
    line = (
        "The line is that of the request which, in the recorded history, was served once memory had been given back."
        if has_history
        else "No recorded history holds a retry, so the stage is known by the counter at its boundaries, and the line "
        "only as far as the stage has one."
    )
    return Narrative(
        title="What it means, how we know, when it is wrong",
        paragraphs=(
            "Where the driver has no memory left, the allocator waits for the device, gives all free segments back, "
            "and asks again. The next steps then ask the driver for what was given back: each of these calls is slow, "
            "and one retry away from running out of memory.",
            f"The allocator counts them; the counter was read at every boundary. {line}",
            "Where other processes use the same device, it may be they who fill it. Steps with a retry may take longer "
            "for what causes both, such as a longer batch.",
        ),
    )
