"""Where the time of each step went, which lines made it wait, which steps may be averaged, and how sure a mean is."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from efprof.artifacts.steps import SiteCalls, StepRecord
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources, functions_in, place_of
from efprof.model import STAGES, Gain, NotRecorded, Series, SeriesLine, StallLine, ThinEvidence, frozen_dataclass
from efprof.units import format_ms

WARM_UP_STEPS = 3
"""The first steps build optimizer state, pick kernels and fill caches: in PyTorch's own benchmarks three suffice."""
WARM_UP_SHARE = 0.05
"""A long run warms up for longer: caches of data, memory pools that settle, clocks that fall."""
MAX_WARM_UP_STEPS = 50
"""Past this, what changes is no warm-up but the run itself."""

MIN_LIGHT = 20
"""Steps that were not recorded in full: so many give a median, and none of them paid for being looked at."""
NUM_RESAMPLES = 1000
"""Enough for the 2.5 % and 97.5 % quantiles to repeat to two digits."""
QUANTILES = (0.025, 0.975)
MAX_RESAMPLED = 4000
"""Of a longer series so many values are drawn, or means of its parts taken: all of 200,000 need gigabytes and 10 s."""
SEED = 20_260_301
"""Fixed: the same run gives the same report."""


class StepTime(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One step in milliseconds; `stage_ms` is in the order of STAGES, and sums with `recorder_ms` to `total_ms`.

    Of a light step, from one update to the next, no stage is known: there are none in `stage_ms`.

    The recorder's own time lies between the marked stages and is no part of `other`. What it wrote after several steps
    is shared out among them, so that a short step's share may be longer than all that lies there: no more is counted.
    """

    record: StepRecord
    total_ms: float
    stage_ms: tuple[float, ...]
    recorder_ms: float
    cpu_ms: float
    device_ms: tuple[float, ...]
    """How long the device took from a stage's begin to its end, in the same order; empty where that is not known."""
    idle_ms: tuple[float, ...]
    """For how much of that it had nothing to do, at most."""

    @property
    def step(self) -> int:
        return self.record.step

    def of(self, stage: str) -> float:
        return self.stage_ms[STAGES.index(stage)]

    @property
    def data_wait_ms(self) -> float:
        """Milliseconds of the data stage, or where a device trains those in which it had nothing to do, at most."""
        return (self.idle_ms or self.stage_ms)[STAGES.index("data")]


@frozen_dataclass
class StepTimes:
    """All finished steps, and the steady ones: after warm-up and outside windows, whose collectors slow them.

    `steady` were recorded in full; `steady_ms` are the lengths of those that were not, where there are enough, else of
    all; `own_ms` are those of all, less the recorder's part, in their order.
    """

    every: tuple[StepTime, ...]
    steady: tuple[StepTime, ...]
    steady_ms: tuple[float, ...]
    own_ms: tuple[float, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Read steps.jsonl; raises NotRecorded where no step was finished."""
        if not run.steps:
            raise NotRecorded("steps.jsonl holds no finished step; record a run that gets through one optimizer step.")
        every = tuple(_timed(record) for record in run.steps)
        steady = [time for time in every[num_warm_up_steps(len(every)) :] if time.record.window is None]
        usual = [time for time in steady if not time.record.has_pause]
        light = [time for time in usual if not time.record.is_full]
        return cls(
            every=every,
            steady=tuple(time for time in steady if time.record.is_full),
            steady_ms=tuple(time.total_ms for time in (light if len(light) >= MIN_LIGHT else usual)),
            own_ms=tuple(time.total_ms - time.recorder_ms for time in usual),
        )

    @property
    def backward_site(self) -> str | None:
        """The line that runs backward, in most steps; None where none was recorded."""
        sites = Counter(time.record.backward_site for time in self.every if time.record.backward_site)
        return next((site for site, _ in sites.most_common(1)), None)

    def at_least(self, num_steps: int) -> tuple[StepTime, ...]:
        """The steady steps; raises ThinEvidence where there are fewer."""
        if len(self.steady) < num_steps:
            raise ThinEvidence(
                f"Only {len(self.steady)} steps were recorded in full after warm-up and outside windows, {num_steps} "
                "are needed; record a longer run, or with 'efprof record --overhead 100%'."
            )
        return self.steady

    def median_ms(self) -> float:
        """The median steady step; raises ThinEvidence where there is none."""
        self.at_least(1)
        return statistics.median(self.steady_ms)


def within_idle(run: Run, gain: Gain) -> Gain:
    """The same, but no more than the device was idle: what the host does while the device is busy costs nothing.

    Where a device trained and its times are not known, as of an older recording, it may be nothing.
    """
    idle_ms = [sum(time.idle_ms) for time in run.get(StepTimes).steady if time.idle_ms]
    low_high = gain.step_ms_interval
    if gain.step_ms is None or not (idle_ms or run.is_on_cuda):
        return gain
    if not idle_ms:
        return replace(
            gain,
            step_ms_interval=(0.0, low_high[1] if low_high else gain.step_ms),
            explanation=f"{gain.explanation}; how much of it the device was busy is not known",
        )
    most_ms = statistics.fmean(idle_ms)
    return replace(
        gain,
        step_ms=min(gain.step_ms, most_ms),
        step_ms_interval=low_high and (min(low_high[0], most_ms), min(low_high[1], most_ms)),
        explanation=f"{gain.explanation}; at most what the device was idle, {format_ms(most_ms)}",
    )


def part_of_steps(times: StepTimes, label: str, part_ms: Sequence[float]) -> Series:
    """The picture of one part of each steady step, and the rest of the step stacked on it."""
    steps = tuple(float(time.step) for time in times.steady)
    rest_ms = tuple(max(0.0, time.total_ms - part) for time, part in zip(times.steady, part_ms, strict=True))
    return Series(
        title="Time per step",
        x_unit="",
        y_label="time",
        y_unit="ms",
        lines=(
            SeriesLine(label=label, x=steps, y=tuple(part_ms), is_highlighted=True),
            SeriesLine(label="everything else", x=steps, y=rest_ms),
        ),
        is_stacked=True,
    )


def num_warm_up_steps(num_steps: int) -> int:
    """How many first steps are left out of statistics; never more than half of a short run."""
    wanted = max(WARM_UP_STEPS, math.ceil(WARM_UP_SHARE * num_steps))
    return min(wanted, MAX_WARM_UP_STEPS, num_steps // 2)


def stall_lines(run: Run) -> tuple[StallLine, ...]:
    """Every line that stalled a steady step, the most expensive first; raises NotRecorded without a finished step.

    What a line calls itself and what it calls a library for are apart.
    """
    steady, sources = run.get(StepTimes).steady, run.get(Sources)
    stalls = defaultdict[tuple[str, str, tuple[str, ...]], list[SiteCalls]](list)
    for stall in (stall for time in steady for stall in time.record.stalls):
        stalls[place_of(stall.site), stall.call, functions_in(stall.library)].append(stall)
    lines = (
        StallLine(
            blame=sources.line(found[0].site),
            call=call,
            count_per_step=sum(stall.count for stall in found) / len(steady),
            step_ms=sum(stall.us for stall in found) / 1000 / len(steady),
            library=found[0].library,
        )
        for (_, call, _), found in stalls.items()
    )
    return tuple(sorted(lines, key=lambda line: (-line.step_ms, line.blame.key, line.call, line.library)))


def resample(samples: Sequence[float], generator: np.random.Generator) -> NDArray[np.float64]:
    """`NUM_RESAMPLES` series as long as `samples`, or MAX_RESAMPLED, of blocks of n^(1/3) steps: [resamples, steps]."""
    values = np.asarray(samples, dtype=np.float64)
    if len(values) > MAX_RESAMPLED:
        values = values[np.sort(generator.choice(len(values), MAX_RESAMPLED, replace=False))]
    length = max(1, round(len(values) ** (1 / 3)))
    num_blocks = math.ceil(len(values) / length)
    starts = generator.integers(0, len(values), size=(NUM_RESAMPLES, num_blocks, 1))
    places = (starts + np.arange(length)) % len(values)
    return values[places.reshape(NUM_RESAMPLES, -1)[:, : len(values)]]


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median."""
    return _interval(np.median(resample(samples, np.random.default_rng(SEED)), axis=1))


def mean_interval(samples: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean."""
    means = [float(np.mean(part)) for part in np.array_split(samples, min(len(samples), MAX_RESAMPLED))]
    return _interval(np.mean(resample(means, np.random.default_rng(SEED)), axis=1))


def quantile_change_intervals(
    early: Sequence[float], late: Sequence[float], quantile: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The 95 % intervals of the ratio and of the difference of the later quantile to the earlier one."""
    generator = np.random.default_rng(SEED)
    before = np.quantile(resample(early, generator), quantile, axis=1)
    after = np.quantile(resample(late, generator), quantile, axis=1)
    return _interval(after / np.maximum(before, np.finfo(np.float64).tiny)), _interval(after - before)


def _timed(record: StepRecord) -> StepTime:
    spent_us = dict.fromkeys(STAGES, 0.0) if record.is_full else {}
    for span in record.spans:
        if span.stage in spent_us:
            spent_us[span.stage] += span.end_us - span.start_us
    spent_us.pop("other", None)
    unmarked_us = max(0.0, record.total_us - sum(spent_us.values()))
    recorder_us = min(record.recorder_us, unmarked_us)
    if record.is_full:
        spent_us["other"] = unmarked_us - recorder_us
    device_ms, idle_ms = _on_device(record)
    return StepTime(
        record=record,
        total_ms=record.total_us / 1000,
        stage_ms=tuple(us / 1000 for us in spent_us.values()),
        recorder_ms=recorder_us / 1000,
        cpu_ms=record.cpu_us / 1000,
        device_ms=device_ms,
        idle_ms=idle_ms,
    )


def _on_device(record: StepRecord) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """How long the device took for each stage, and for how much of it it was idle at most; what is left is `other`.

    From one mark to the next it was idle only after it had passed the one, and before the host came to the other. By
    how much it was behind the host at least, when that came to a mark, follows from the marks before.
    """
    if record.device_us is None or not record.is_full:
        return (), ()
    took_us, idle_us = dict.fromkeys(STAGES, 0.0), dict.fromkeys(STAGES, 0.0)
    at_us = behind_us = 0.0
    for span in record.spans:
        if span.device_us is None:
            return (), ()
        stage = span.stage if span.stage in STAGES else "other"
        gap_us, host_us = max(0.0, span.start_us - at_us), span.end_us - span.start_us
        idle_us["other"] += max(0.0, gap_us - behind_us)
        behind_us = max(0.0, behind_us - gap_us)
        took_us[stage] += span.device_us
        idle_us[stage] += min(span.device_us, max(0.0, host_us - behind_us))
        behind_us = max(0.0, behind_us + span.device_us - host_us)
        at_us = span.end_us
    idle_us["other"] += max(0.0, record.total_us - at_us - behind_us)
    whole_us = record.spans[0].start_us + record.device_us
    took_us["other"] = max(0.0, whole_us - sum(us for stage, us in took_us.items() if stage != "other"))
    idle_us["other"] = min(idle_us["other"], took_us["other"])
    return tuple(us / 1000 for us in took_us.values()), tuple(us / 1000 for us in idle_us.values())


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(values, QUANTILES)
    return float(low), float(high)
