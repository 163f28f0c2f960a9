"""Sees whether a log record is written to one stream or file more than once, and which lines added the handlers."""

import logging
import time
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from efprof.artifacts.events import DuplicatedLog
from efprof.recorder.loop.loop import Loop
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Note
from efprof.recorder.session.sites import Sites

COLLECTOR = "duplicated_logs"
NOTED_AT = frozenset({3, 10, 30, 100, 1000, 10_000})
"""Doubled records after which they are told; and at the end."""
MAX_LINES = 100
"""Lines that log, or that add handlers, and are told apart."""

Adding = tuple[int, str | None]
"""How many handlers had been added to loggers by then, and the line that added this one."""


@dataclass(eq=False)
class _Watch:
    loop: Loop
    sites: Sites
    note: Note
    event: DuplicatedLog = field(default_factory=lambda: DuplicatedLog(step=0))
    num_added: int = 0
    handlers: weakref.WeakKeyDictionary[logging.Handler, Adding] = field(default_factory=weakref.WeakKeyDictionary)
    record: tuple[int, float] = (0, 0.0)
    """The `id` of the last one and when it was made: itself it may hold tensors, by its arguments."""
    is_doubled: bool = False
    written: dict[object, Adding] = field(default_factory=dict)
    """Where that was written to, by the handler that came first there."""
    adding: dict[int, str] = field(default_factory=dict)
    logging_lines: Counter[str] = field(default_factory=Counter)

    def handler_added(self, _: Any, *given: Any) -> None:
        if given and isinstance(given[0], logging.Handler):
            self.num_added += 1
            self.handlers[given[0]] = self.num_added, self.sites.of_caller()

    def emitted(self, handler: Any, *given: Any) -> None:
        if not given or not self.loop.thread.is_training_thread:
            return
        record = id(given[0]), getattr(given[0], "created", 0.0)
        if record != self.record:
            self.record, self.written, self.is_doubled = record, {}, False
            self.event.num_records += 1
        target = getattr(handler, "baseFilename", None) or id(getattr(handler, "stream", None))
        added = self.handlers.get(handler, (0, None))
        if target not in self.written:
            self.written[target] = added
        elif not self.is_doubled:
            self.is_doubled = True
            self._count(self.written[target], added)

    def at_end(self) -> None:
        if self.event.num_records:
            self.event.at_ns, self.event.step = time.time_ns(), self.loop.number
            self.note(self.event)

    def _count(self, *added: Adding) -> None:
        self.event.num_doubled += 1
        site = self.sites.of_caller()
        if site is not None and (site in self.logging_lines or len(self.logging_lines) < MAX_LINES):
            self.logging_lines[site] += 1
            self.event.site = self.logging_lines.most_common(1)[0][0]
        if len(self.adding) < MAX_LINES:
            self.adding |= {number: line for number, line in added if line is not None}
            self.event.added = [*dict.fromkeys(line for _, line in sorted(self.adding.items(), reverse=True))]
        if self.event.num_doubled in NOTED_AT:
            self.at_end()


def start(session: Session) -> None:
    watch = _Watch(session.loop, session.sites, session.note)
    session.after(logging.Logger, "addHandler", COLLECTOR, watch.handler_added)
    session.after(logging.StreamHandler, "emit", COLLECTOR, watch.emitted)
    session.attach(COLLECTOR, watch)
