"""Whether later steps take longer than early ones, and whether they have more to do because they are larger."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from efprof.facts.run.run import Run
from efprof.facts.steps.step_times import StepTime, StepTimes, quantile_change_intervals
from efprof.model import STAGES, frozen_dataclass

MIN_STEPS = 24
"""Eight steps in each third: fewer, and a single step decides."""
TYPICAL = 0.2
"""The quantile that stands for a third. What other programs do to the machine only ever makes steps longer, so a low
quantile repeats better than the median."""
MIN_STAGE_SHARE = 0.05
"""A stage below this share of the early step says nothing about the machine."""
UNIFORM_SHARE = 0.6
"""Where every stage shows at least this share of the whole growth, the machine is the likelier cause."""
NUM_BLOCKS = 8
"""Of at least three steps each; the first tells what a step took at first, when a third has grown already."""
MAX_SUDDEN = 0.85
"""Of the growth, from one block to the second after it: 0.29 of a line, 0.58 of a cubic, and all of it in one jump, as
where a layer is unfrozen or a penalty sets in: that makes later steps longer once, and no longer after that."""
MIN_THIRD_MS = 100.0
"""What else a machine does comes in spells of tens of milliseconds, which a shorter third can lie in as a whole."""
MIN_WORK_SHARE = 0.75
"""Work shows as CPU time; on a busy machine the process waits for its cores instead."""


@frozen_dataclass
class Part:
    """A stretch of steady steps and its typical times (20 % of the steps are faster) in milliseconds.

    `all_ms` is how long it lasted, light steps included. `device_ms` is None where no device told its own.
    """

    first_step: int
    last_step: int
    all_ms: float
    typical_ms: float
    cpu_ms: float
    stage_ms: dict[str, float]
    device_ms: float | None

    @property
    def span(self) -> str:
        return f"steps {self.first_step} to {self.last_step}"

    @property
    def middle(self) -> float:
        """The step in the middle."""
        return (self.first_step + self.last_step) / 2


@frozen_dataclass
class Slowdown:
    """The two parts, the 95 % interval of their ratio, and what a late step saves with no more work than the first had.

    `saved_ms` is `last_ms`, the median of the last third of all steps (few long ones are full), less the first block's.
    """

    early: Part
    late: Part
    ratio_interval: tuple[float, float]
    last_ms: float
    saved_ms: float
    saved_interval_ms: tuple[float, float]
    sudden_share: float
    """The largest part of the growth that came from one block of steps to the second after it."""

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Compare the thirds; raises ThinEvidence under MIN_STEPS steps."""
        times = run.get(StepTimes)
        steady, own_ms = times.at_least(MIN_STEPS), times.own_ms
        third = len(steady) // 3
        total_ms = [time.total_ms for time in steady]
        levels = [_typical(block) for block in np.array_split(np.array(total_ms), NUM_BLOCKS)]
        rises = [later - earlier for earlier, later in zip(levels, levels[2:], strict=False)]
        first, last = own_ms[: len(own_ms) // NUM_BLOCKS], own_ms[-(len(own_ms) // 3) :]
        return cls(
            early=_part(steady[:third]),
            late=_part(steady[-third:]),
            ratio_interval=quantile_change_intervals(total_ms[:third], total_ms[-third:], TYPICAL)[0],
            last_ms=float(np.median(last)),
            saved_ms=max(0.0, float(np.median(last) - np.median(first))),
            saved_interval_ms=quantile_change_intervals(first, last, 0.5)[1],
            sudden_share=max(rises) / (max(levels) - min(levels) or 1.0),
        )

    @property
    def ratio(self) -> float:
        """The later typical step over the earlier one."""
        return self.late.typical_ms / self.early.typical_ms

    @property
    def growth_ms(self) -> float:
        """How much longer the later steps take."""
        return self.late.typical_ms - self.early.typical_ms

    @property
    def device_share(self) -> float:
        """How much of the growth the device takes longer: a host that runs ahead at first only catches up with it."""
        before, after = self.early.device_ms, self.late.device_ms
        return 1.0 if before is None or after is None else min(1.0, (after - before) / self.growth_ms)

    @property
    def growth_per_step_ms(self) -> float:
        """How much longer each step takes than the one before it."""
        return self.growth_ms / (self.late.middle - self.early.middle)

    @property
    def stage(self) -> str:
        """The stage that grew most."""
        return max(STAGES, key=lambda stage: self.late.stage_ms[stage] - self.early.stage_ms[stage])

    @property
    def is_uniform(self) -> bool:
        """Whether all stages that matter grew alike, as they do on a machine that became slower or busier."""
        matter = [stage for stage in STAGES if self.early.stage_ms[stage] >= MIN_STAGE_SHARE * self.early.typical_ms]
        least = 1 + UNIFORM_SHARE * (self.ratio - 1)
        grew = [self.late.stage_ms[stage] >= least * self.early.stage_ms[stage] for stage in matter]
        return len(matter) > 1 and all(grew)

    def doubt(self, *, is_gpu: bool, is_explained: bool) -> str:
        """Why the program may not do ever more work; empty where it does. On a GPU, waiting is work."""
        if not is_explained and min(self.early.all_ms, self.late.all_ms) < MIN_THIRD_MS:
            return "those are over so soon that anything else the machine did meanwhile looks the same"
        if self.sudden_share > MAX_SUDDEN:
            return "nearly all of it came at once, as where another phase of the training begins"
        if self.device_share < MIN_WORK_SHARE:
            return "the device took no longer: its host had only run ahead of it"
        # As many milliseconds, the same factor, or twice: four busy loops beside programs add 12 to 14 % (measured).
        before, more_ms = self.early.cpu_ms, self.late.cpu_ms - self.early.cpu_ms
        if not is_gpu and more_ms < min(before, MIN_WORK_SHARE * min(self.growth_ms, before * (self.ratio - 1))):
            return "CPU time grew less: it waited, for a core or for something outside of it"
        return ""


def _part(times: Sequence[StepTime]) -> Part:
    on_device = [sum(time.device_ms) for time in times if time.device_ms]
    return Part(
        first_step=times[0].step,
        last_step=times[-1].step,
        all_ms=(times[-1].record.started_ns - times[0].record.started_ns) / 1e6 + times[-1].total_ms,
        typical_ms=_typical([time.total_ms for time in times]),
        cpu_ms=_typical([time.cpu_ms for time in times]),
        stage_ms={stage: _typical([time.of(stage) for time in times]) for stage in STAGES},
        device_ms=_typical(on_device) if on_device else None,
    )


def _typical(values: Sequence[float] | np.ndarray[Any, Any]) -> float:
    return float(np.quantile(values, TYPICAL))
