"""The steps of a sprint, from what the stopwatch took of them to what is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isnan
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from efprof.artifacts.pending import PendingStep
from efprof.artifacts.steps import AlikeSteps
from efprof.recorder.open_step import OpenStep, last_of
from efprof.recorder.pattern import Codes, Pattern
from efprof.recorder.pending_steps import PendingSteps
from efprof.recorder.sprint_steps import Interrupted, fill, interrupted_in
from efprof.recorder.steps import Steps

if TYPE_CHECKING:
    from efprof.recorder.stopwatch import Stopwatch
    from efprof.recorder.stopwatches import NoStopwatch

MARK_NS: Final = 2_500
"""What a call costs that a sprint takes note of, with the function around it and the caches that it finds cold: at its
hooks 1.4 us in a step of 2 ms, 2.5 in one of 9 (measured by `make bench-overhead`; 1 us in a loop of its own). Far too
short to be measured at each."""


class SprintedSteps:
    """Those that wait in `pending`, and what else was noted of them."""

    def __init__(
        self,
        *,
        watch: Stopwatch | NoStopwatch,
        steps: Steps,
        pattern: Pattern,
        write: Callable[[AlikeSteps], None],
        write_together: Callable[[Callable[[], None]], None],
        is_broken: Callable[[], bool],
    ) -> None:
        """The last three are those that a sprint is made with."""
        self._watch = watch
        self._steps = steps
        self._pattern = pattern
        self._write_line = write
        self._write_together = write_together
        self._is_broken = is_broken
        self.pending: PendingSteps | None = None
        self.site_before: str | None = None
        """Where backward was called in the last step of which that is known."""
        self.last_ns = 0
        """How long the last step took."""
        self._touched: dict[int, OpenStep] = {}
        """By number, those of which something was noted that the stopwatch does not know."""
        self._is_writing = self._has_leftovers = self._has_written_rows = False
        self._spent_ns = 0
        """What writing took, the last time."""

    @property
    def open_step(self) -> OpenStep:
        """The one that the stopwatch is taking."""
        number = self._watch.number
        step = self._touched.get(number)
        if step is None:
            step = self._touched[number] = _new_step(number)
        if step.sequence is None and self._watch.sequence >= 0:
            step.sequence = self._watch.sequence
        if step.learning_rate is None and not isnan(self._watch.learning_rate):
            step.learning_rate = self._watch.learning_rate
        return step

    @property
    def site(self) -> str | None:
        """Where backward is called now."""
        noted = (step.backward_site for step in reversed(self._touched.values()))
        return next(filter(None, noted), self.site_before)

    def write_up_to(self, done: Codes) -> tuple[OpenStep, Interrupted]:
        """Write what is whole; the step that is not, of which these calls were made, and where it stands."""
        assert self.pending is not None
        pending, touched = self.pending[len(self.pending)], self._touched.pop(self._watch.number, None)
        nested = self._watch.nested
        self.write()
        return self._filled(pending, touched, done), interrupted_in(pending, done, nested)

    def write_leftovers(self) -> None:
        """A signal's handler may raise while steps are being written: the others are written when we are next here."""
        if self._has_leftovers:
            self.write()

    def write(self) -> None:
        """Turn into records what is whole and not written yet."""
        entered, pending = perf_counter_ns(), self.pending
        if pending is None or not len(pending) or self._is_broken() or self._is_writing:
            return
        self._is_writing = self._has_leftovers = True
        try:
            self._write_pending(pending, entered)
        finally:
            self._is_writing = False

    def _write_pending(self, pending: PendingSteps, entered: int) -> None:
        count, first = len(pending), pending[0]
        last = pending[count - 1]
        cpu_ns, rss_bytes = self._steps.resources(first.start_ns, last.end_ns)
        line = AlikeSteps(
            alike=[],
            stages=self._pattern.stretches,
            cpu_share=cpu_ns / (last.end_ns - first.start_ns),
            rss_bytes=rss_bytes,
            recorder_us=(len(self._pattern.codes) * MARK_NS + self._spent_ns / count) / 1000,
            loader=last_of(self._pattern.loaders),
        )
        self._write_together(lambda: self._finish(line))
        self._has_leftovers = self._has_written_rows = False
        if self._is_broken():
            return
        pending.clear()
        self._touched.clear()
        self.last_ns = last.end_ns - last.start_ns
        self._spent_ns = perf_counter_ns() - entered

    def _finish(self, line: AlikeSteps) -> None:
        """All those of which the stopwatch knows everything go into one line."""
        steps, pendings, touched = self._steps, self.pending, self._touched
        assert pendings is not None
        rows = pendings.rows(len(self._pattern.codes))
        if not self._has_written_rows:
            if steps.others.have_spans:  # of which step, its record tells
                for row in rows:
                    touched.setdefault(row[0], _new_step(row[0]))
            lines = [replace(line, alike=alike, backward_site=site) for site, alike in self._alike(rows)]
            self._has_written_rows = True
            for line in lines:
                steps.num_finished += len(line.alike)
                self._write_line(line)
        recorder_ns, first = round(line.recorder_us * 1000), rows[0][0]
        numbers = range(first, first + len(rows)) if steps.added else sorted(touched)
        for number in numbers:
            pending = pendings[number - first]
            if number in touched:
                step = self._filled(pending, touched.pop(number), self._pattern.codes)
                step.recorder_ns += recorder_ns
                steps.complete(step, pending.end_ns)
                continue
            for listener in steps.added:
                listener(number, (pending.end_ns - pending.start_ns) / 1000)

    def _alike(self, rows: list[tuple[Any, ...]]) -> Iterator[tuple[str | None, list[tuple[Any, ...]]]]:
        """Those of which nothing else was noted, by where backward is called."""
        site, alike = self.site_before, []
        for row in rows:
            step = self._touched.get(row[0])
            if step is None:
                alike.append(row)
            elif step.backward_site not in {None, site}:
                if alike:
                    yield site, alike
                site, alike = step.backward_site, []
        if alike:
            yield site, alike

    def _filled(self, pending: PendingStep, touched: OpenStep | None, done: Codes) -> OpenStep:
        step = touched or _new_step(pending.number)
        fill(step, pending, self._pattern, done)
        if step.backward_site is not None:
            self.site_before = step.backward_site
        elif step.num_backwards:
            step.backward_site = self.site_before
        return step


def _new_step(number: int) -> OpenStep:
    """When it began is filled in when the sprint is over."""
    return OpenStep(number=number, start_ns=0, epoch_ns=0, reads_boundaries=False)
