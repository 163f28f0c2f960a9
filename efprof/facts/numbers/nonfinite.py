"""The first step whose loss or gradient was not finite, what came before it, and how many were lost after it."""

import math
import statistics
from collections.abc import Sequence
from itertools import groupby
from typing import Self

from efprof.artifacts.events import BadParameter, NonFiniteSeen, SuspectOperation, events_of
from efprof.artifacts.steps import StepRecord
from efprof.facts.run.run import Run
from efprof.model import NotRecorded, ThinEvidence, frozen_dataclass

EXPLOSION = 10.0
"""Gradient norm of the last good step over the median before: Megatron calls ten times the usual an explosion."""
MIN_STEPS_BEFORE = 3
"""A median of fewer norms says nothing about what is usual."""
LAST_GOOD_STEPS = 3
"""An explosion may take a few steps to overflow: the largest norm of the last three counts."""
MIN_SHARE_SKIPPED = 0.5
"""A gradient scaler makes gradients overflow now and then, to find its scale; every second step is too often."""
LONGEST_SEARCH = 16
"""Steps in a row that it may skip later on: its scale has fallen to a 2**16th by then, and still does not fit."""


@frozen_dataclass
class NonFinite:
    """`first_step` is None where all was finite.

    `norms` are the finite gradient norms before it, in order; `suspects` the operations whose own inputs were
    finite and whose result was not, or `is_late` where nobody could look for them, since a device told of it only after
    backward had freed the graph; `site` the line that called backward or the optimizer. `parameter` was bad
    before the first bad loss, and `is_of_update` says that the gradients before it were finite.
    """

    num_steps: int
    first_step: int | None
    what: str = ""
    value: str = ""
    num_bad: int = 0
    num_from_first: int = 0
    num_read: int = 0
    """Of these, those whose loss or gradients are known."""
    norms: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    """How far from zero the finite ones before it were, in order, of all steps."""
    suspects: tuple[SuspectOperation, ...] = ()
    is_late: bool = False
    is_standstill: bool = False
    """Whether a gradient scaler has held back every update since."""
    site: str | None = None
    parameter: BadParameter | None = None
    is_of_update: bool = False

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Read steps and events; raises ThinEvidence where neither losses nor gradients were seen."""
        records = run.steps
        seen = events_of(run.rank_folder, NonFiniteSeen)
        if not records and not seen:
            raise NotRecorded("steps.jsonl holds no finished step; record a run that gets through one optimizer step.")
        if not seen and all(record.loss is None and record.gradient_norm is None for record in records):
            raise ThinEvidence("no step's loss or gradients were seen: backward was not called on a scalar.")
        harmless = _steps_of_scale_search(records) | _steps_thrown_away(records)
        bad = [record for record in records if _fault(record) and record.step not in harmless]
        seen = [event for event in seen if event.step not in harmless]
        first = min([record.step for record in bad] + [event.step for event in seen], default=None)
        if first is None:
            return cls(num_steps=len(records), first_step=None)
        return cls._at(first, records, bad, seen)

    @classmethod
    def _at(
        cls, first: int, records: Sequence[StepRecord], bad: Sequence[StepRecord], seen: Sequence[NonFiniteSeen]
    ) -> Self:
        event = min(seen, key=lambda event: (event.step, not event.suspects), default=None)
        record = next((record for record in records if record.step == first), None)
        what, value = (_fault(record) if record else None) or ("", "")
        before = [record for record in records if record.step < first]
        after = [record for record in records if record.step >= first]
        # Under a scaler the operation is looked for once that finds no scale. The training may have broken off there.
        is_bad_till_then = event is not None and set(range(first, event.step)) <= {record.step for record in bad}
        parameter = event.parameter if event and event.step == first else None
        is_known = bool(before) and before[-1].gradient_norm is not None  # and finite: `first` is the first that is not
        return cls(
            num_steps=len(records),
            first_step=first,
            what=what or (event.what if event else "loss"),
            value=value or (event.value if event else "nan"),
            num_bad=max(1, len(bad)),
            num_from_first=max(1, len(after)),
            num_read=max(1, sum({one.loss, one.gradient_norm} != {None} or one.is_skipped for one in after)),
            is_standstill=len(after) >= LONGEST_SEARCH and all(map(_is_held_back, after)),
            norms=tuple(float(norm) for record in before if (norm := record.gradient_norm) is not None),
            losses=tuple(abs(float(loss)) for one in before if math.isfinite(float(loss := one.loss or 0)) and loss),
            suspects=tuple(event.suspects) if event and is_bad_till_then else (),
            is_late=event is not None and event.is_late,
            site=(record.backward_site if record else None) or (event.site if event else None),
            parameter=parameter,
            is_of_update=parameter is not None and (is_known or parameter.has_finite_state),
        )

    @property
    def usual_norm(self) -> float | None:
        """The median gradient norm of the steps before the last good ones; of few, or of such as only grew, the first.

        None where there are fewer than two: a model's first gradients are among its largest, unless they explode.
        """
        earlier = self.norms[:-LAST_GOOD_STEPS]
        if len(earlier) >= MIN_STEPS_BEFORE and list(earlier) != sorted(earlier):
            return statistics.median(earlier)
        return self.norms[0] if len(self.norms) > 1 else None

    @property
    def explosion(self) -> float | None:
        """How many times the usual the gradient norm had reached, where that is an explosion."""
        usual = self.usual_norm
        if not usual:
            return None
        ratio = max(self.norms[-LAST_GOOD_STEPS:]) / usual
        return ratio if ratio > EXPLOSION else None

    @property
    def rise(self) -> float | None:
        """How many times the largest loss before them the last losses had reached, where that is an explosion."""
        earlier, last = self.losses[:-LAST_GOOD_STEPS], self.losses[-LAST_GOOD_STEPS:]
        if len(earlier) < MIN_STEPS_BEFORE:
            return None
        ratio = max(last) / max(earlier)
        return ratio if ratio > EXPLOSION else None

    @property
    def has_exploded(self) -> bool:
        """By the gradients, whose norms full steps tell alone, or by the losses of all steps."""
        return self.explosion is not None or self.rise is not None


def badness(record: StepRecord) -> tuple[str, str] | None:
    """What was not finite, and its value as it is spelled; None where all was."""
    for what, value in (("loss", record.loss), ("gradient", record.gradient_norm)):
        if value is not None and not math.isfinite(float(value)):
            return what, str(value)
    return None


def _steps_of_scale_search(records: Sequence[StepRecord]) -> set[int]:
    """Those whose gradients overflowed because a gradient scaler, which held them back, was finding its scale.

    It finds the first one, which a good step tells, within as many as it likes; from there on, it skips few.
    """
    stretches = [list(group) for is_held, group in groupby(records, key=_is_held_back) if is_held]
    after = records[len(stretches[0]) :] if stretches and stretches[0][0] is records[0] else ()
    found_first = bool(after) and _fault(after[0]) is None
    first, later = (stretches[:1], stretches[1:]) if found_first else ([], stretches)
    rest = len(records) - sum(len(stretch) + 1 for stretch in first)
    if sum(map(len, later)) >= MIN_SHARE_SKIPPED * rest:
        later = []
    held = [*first, *(stretch for stretch in later if len(stretch) < LONGEST_SEARCH)]
    return {record.step for stretch in held for record in stretch}


def _steps_thrown_away(records: Sequence[StepRecord]) -> set[int]:
    """Those whose loss was not finite and that the program skipped without a scaler, up to one that is fine."""
    thrown, waiting = set[int](), set[int]()
    for record in records:
        if record.is_skipped and record.scaler_scale is None and not math.isfinite(float(record.loss or 0)):
            waiting.add(record.step)
        elif not record.is_skipped:
            thrown |= set() if badness(record) else waiting
            waiting.clear()
    return thrown


def _fault(record: StepRecord) -> tuple[str, str] | None:
    """The same; of a light step its skip alone tells that the gradient was not finite."""
    return badness(record) or (("gradient", "inf") if record.is_skipped else None)


def _is_held_back(record: StepRecord) -> bool:
    is_scaled = record.is_skipped or record.scaler_scale is not None
    return is_scaled and math.isfinite(float(record.loss or 0)) and _fault(record) is not None
