"""The steps that a gradient scaler skipped although it had had time to find its scale, and where it was made."""

import math
import statistics
from collections.abc import Sequence
from typing import Self

from efprof.artifacts.events import ScalerBuilt, events_of
from efprof.facts.numbers.nonfinite import NonFinite
from efprof.facts.run.run import Run
from efprof.facts.steps.step_times import StepTime, StepTimes, mean_interval
from efprof.model import Narrative, frozen_dataclass

SEARCH_STEPS = 50
"""From 2**16, where scalers begin, 16 skipped steps lead down to 1; the others are for gradients that still settle."""

MIN_INTERVAL = 2000
"""torch's own growth_interval: a larger scale that does not fit costs one step of so many."""


@frozen_dataclass
class SkippedSteps:
    """Of the steps after the search for a scale, up to the first whose loss or gradient is not finite by itself.

    `num_steps` are those of which a skip would be known, `num_skipped` those that were, `late_share` how many of their
    second half. `scales` are those after all full steps, none where nothing was scaled.
    `skipped_ms` is the median skipped step, of those that nothing else made longer where there are any; `saved_ms` what
    skipping took of each step on average, less what a scale that is too large takes where it is tried once in
    `MIN_INTERVAL` steps.
    `scaler` is None where none, or several that differ, were seen to be made; `site` is its line, or that of backward.
    """

    num_steps: int
    num_skipped: int
    late_share: float
    scales: tuple[float, ...]
    skipped_ms: float
    saved_ms: float
    saved_interval_ms: tuple[float, float]
    scaler: ScalerBuilt | None
    site: str | None

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Read steps and events; raises NotRecorded without a finished step."""
        first_bad, events = run.get(NonFinite).first_step, events_of(run.rank_folder, ScalerBuilt)
        built = {(one.site, one.init_scale, one.growth_interval): one for one in events}
        scaler = next(iter(built.values())) if len(built) == 1 else None
        times = [time for time in run.get(StepTimes).every if first_bad is None or time.step < first_bad]
        after = _seen(times[SEARCH_STEPS:])
        late = after[len(after) // 2 :]
        skipped = [time for time in after if time.record.is_skipped]
        scales = tuple(scale for time in times if (scale := time.record.scaler_scale) is not None)
        plain = [time.total_ms for time in skipped if time.record.window is None and not time.record.has_pause]
        skipped_ms = statistics.median(plain or [time.total_ms for time in skipped] or [0.0])
        low_ms, high_ms = mean_interval([skipped_ms * time.record.is_skipped for time in after if skipped] or [0.0])
        lost_ms, tried_ms = skipped_ms * len(skipped) / max(1, len(after)), skipped_ms / MIN_INTERVAL
        return cls(
            num_steps=len(after),
            num_skipped=len(skipped),
            late_share=sum(time.record.is_skipped for time in late) / max(1, len(late)),
            scales=scales,
            skipped_ms=skipped_ms,
            saved_ms=max(0.0, lost_ms - tried_ms),
            saved_interval_ms=(max(0.0, low_ms - tried_ms), max(0.0, high_ms - tried_ms)),
            scaler=scaler,
            site=(scaler.site if scaler else None) or run.get(StepTimes).backward_site,
        )

    @property
    def share(self) -> float:
        return self.num_skipped / max(1, self.num_steps)

    @property
    def lowest_scale(self) -> float:
        return min(self.scales)

    @property
    def settings(self) -> dict[str, tuple[float, float]]:
        """(as it is, as it should be) of each setting of the scaler that let this happen; none that is not known."""
        if self.scaler is None:
            return {}
        old, lowest = self.scaler, self.lowest_scale
        fitting = 2.0 ** math.floor(math.log2(lowest)) if lowest > 0 else 0.0  # to multiply by it is exact
        pairs = {
            "init_scale": (old.init_scale, min(old.init_scale, fitting)),
            "growth_interval": (old.growth_interval, max(old.growth_interval, MIN_INTERVAL)),
        }
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def how_skips_are_known() -> Narrative:
    return Narrative.of(
        "A scaler holds an update back where a gradient is not finite under its scale, and makes the scale smaller; "
        "after `growth_interval` steps without that it tries a larger one. With torch's own interval of "
        f"{MIN_INTERVAL:,}, that costs one step in as many.",
        "The prediction is the time of the skipped steps, spread over all steps, less that one: it is felt "
        "in how many steps the training needs, not in how long a step takes.",
        "It is wrong where gradients are not finite at any scale: the scale then goes on falling, whatever it begins "
        "with. And under a scale that is too small, small gradients turn to zero in float16.",
    )


def _seen(times: Sequence[StepTime]) -> list[StepTime]:
    """Those of which a skip would be known: an optimizer that skips on the device tells of it in full steps alone."""
    light = [time for time in times if not time.record.is_full]
    is_told_of_all = any(time.record.is_skipped for time in light)
    has_skipped = any(time.record.is_skipped for time in times)
    return [time for time in times if is_told_of_all or not has_skipped or time.record.is_full]
