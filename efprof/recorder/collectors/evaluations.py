"""Sees evaluations: passes over a DataLoader on whose batches nothing is trained.

A batch was evaluated where, until the next one is asked for, autograd builds no graph and no step ends, and gradients
are off or a module that the program put in evaluation mode still is. That needs no hooks on modules. Not seen are
evaluations without a DataLoader, and those that build graphs all the same.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns, thread_time_ns
from typing import Any, Final
from weakref import ref

import torch

from efprof.artifacts.readings import EVALUATIONS_FILE, EvaluationMemory, EvaluationRecord
from efprof.recorder.budget.sampling import Budget
from efprof.recorder.hooks.patching import call_before
from efprof.recorder.loop.device import Memory
from efprof.recorder.loop.loop import Loop
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Guard
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import LineWriter

TRAINS: Final = "_efprof_trains"
"""The attribute of an iterator on whose batch something was trained: it evaluates nothing."""

MAX_READINGS: Final = 32
"""Batches of one evaluation after which memory is read, beside its end: they show whether each adds to it."""


@dataclass(kw_only=True, slots=True)
class _Pass:
    """An iterator that is gone through, so far without training, and what is to be written of it."""

    iterator: ref[Any]
    record: EvaluationRecord
    mark_bytes: int | None
    began_ns: int
    handed_ns: int = 0
    progress: tuple[int, int] | None = None
    """The numbers of graph nodes and of steps when its last batch came, until it is seen what became of that."""


class Evaluations:
    def __init__(
        self, *, loop: Loop, memory: Memory, sites: Sites, budget: Budget, lines: LineWriter, guard: Guard
    ) -> None:
        self._loop, self._memory, self._sites, self._budget, self._lines = loop, memory, sites, budget, lines
        self.may_begin = False
        """Whether the program has put a module in evaluation mode, or a pass is open: where neither is, and gradients
        are on, a batch asked for is one to train on, and this is all that training pays for."""
        self._in_evaluation_mode: ref[torch.nn.Module] | None = None
        self._open: _Pass | None = None
        self.asked: Callable[[Any], None] = guard(self._note_asked)
        self.handed: Callable[[Any], None] = guard(self._note_handed)
        """Told of the loader's iterator before a batch is asked of it, and after."""
        self._dropped = guard(self._drop)

    def put_in_evaluation_mode(self, module: torch.nn.Module) -> None:
        self._in_evaluation_mode = ref(module)
        self.may_begin = True

    @property
    def is_idle(self) -> bool:
        """Whether a batch asked for now is one to train on."""
        if self._open is not None:
            return False
        module = None if self._in_evaluation_mode is None else self._in_evaluation_mode()
        self.may_begin = module is not None and not module.training
        return torch.is_grad_enabled() and not self.may_begin

    def _note_asked(self, iterator: Any) -> None:
        """It is asked for a batch: what became of the last one shows now."""
        if not self._loop.thread.is_training_thread:
            return
        self._look_at_last()
        if self._open is not None and self._open.iterator() is not iterator:
            self._close()
        if self._open is None and not self.is_idle and TRAINS not in iterator.__dict__:
            self._begin(iterator)

    def _note_handed(self, iterator: Any) -> None:
        going = self._open
        if going is not None and going.iterator() is iterator and self._loop.thread.is_training_thread:
            going.handed_ns, going.progress = perf_counter_ns(), self._progress()
            if not going.record.num_batches:
                going.record.after_step = self._loop.num_steps - 1

    def exhausted(self, iterator: Any, *_: object) -> None:
        if self._open is not None and self._open.iterator() is iterator:
            self._close()

    def end(self) -> None:
        self._look_at_last()
        self._close()

    def _drop(self, iterator: ref[Any]) -> None:
        """The loop was left, and its iterator is no more."""
        if self._open is not None and self._open.iterator is iterator and self._loop.thread.is_training_thread:
            self.end()

    def _progress(self) -> tuple[int, int]:
        return torch.autograd._get_sequence_nr(), self._loop.num_steps  # type: ignore[attr-defined]

    def _begin(self, iterator: Any) -> None:
        before = EvaluationMemory(0, self._memory.read()[0])
        self.may_begin = True
        self._open = _Pass(
            iterator=ref(iterator, self._dropped),
            record=EvaluationRecord(
                after_step=-1,
                started_ns=time.time_ns(),
                total_us=0.0,
                num_batches=0,
                site=self._sites.of_caller(sys._getframe()),
                memory=[before],
                peak_bytes=before.allocated_bytes,
                is_peak_exact=False,
            ),
            mark_bytes=self._memory.highest_mark(),
            began_ns=perf_counter_ns(),
        )

    def _look_at_last(self) -> None:
        """Count the last batch, if it was evaluated; otherwise the pass was over when that one came."""
        going = self._open
        if going is None or going.progress is None:
            return
        if going.progress != self._progress():
            if (iterator := going.iterator()) is not None:
                iterator.__dict__[TRAINS] = True
            self._write(going.handed_ns)
            return
        record, going.progress = going.record, None
        record.num_batches += 1
        if record.num_batches <= MAX_READINGS:
            began = thread_time_ns()
            self._note(record)
            self._budget.spend("evaluations", thread_time_ns() - began)

    def _close(self) -> None:
        going = self._open
        if going is not None and going.record.num_batches:
            if going.record.num_batches > MAX_READINGS:
                self._note(going.record)
            mark = self._memory.highest_mark()
            if mark is not None and going.mark_bytes is not None and mark > going.mark_bytes:
                going.record.peak_bytes, going.record.is_peak_exact = mark, True
        self._write(perf_counter_ns())

    def _write(self, ended_ns: int) -> None:
        going, self._open = self._open, None
        if going is not None and going.record.num_batches:
            going.record.total_us = (ended_ns - going.began_ns) / 1000
            self._lines.write(going.record)

    def _note(self, record: EvaluationRecord) -> None:
        reading = EvaluationMemory(record.num_batches, self._memory.read()[0])
        record.memory.append(reading)
        record.peak_bytes = max(record.peak_bytes, reading.allocated_bytes)


def start(session: Session) -> None:
    guard = session.shell.guard("evaluations")
    loop, lines = session.loop, session.lines(EVALUATIONS_FILE)
    evaluations = loop.evaluations = Evaluations(
        loop=loop, memory=session.memory, sites=session.sites, budget=session.budget, lines=lines, guard=guard
    )
    session.undo_at_end([call_before(torch.nn.Module, "eval", guard(evaluations.put_in_evaluation_mode))])
    session.subscribe(loop.loader_ended, "evaluations", evaluations.exhausted)
    session.on_end("evaluations", evaluations.end)
