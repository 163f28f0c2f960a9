"""Notes what `torch.compile` compiled, by its own metrics: which function, for how long, and by which failed guard."""

import sys

from efprof.artifacts.events import Compilation
from efprof.recorder.loop.loop import Loop
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Note
from efprof.recorder.session.sites import Sites

COLLECTOR = "compilations"

METRICS = "torch._dynamo.utils"

MAX_REASON = 300
"""Letters of a guard, whose explanation goes on for lines."""


class CompilationWatch:
    """Knows the line that ran when the last compilation began, and which were noted."""

    def __init__(self, loop: Loop, sites: Sites, note: Note) -> None:
        self._loop, self._sites, self._note = loop, sites, note
        self._seen: set[tuple[str, int]] = set()
        self._site: str | None = None
        self._step: int | None = None

    def began(self) -> None:
        self.note_new()
        self._step = self._loop.number
        self._site = self._sites.of_caller(sys._getframe())

    def note_new(self) -> None:
        """Of the last 64, which is all that torch keeps; not what was compiled before the recording."""
        metrics = sys.modules.get(METRICS)
        for one in metrics.get_compilation_metrics() if metrics else ():
            key = (str(one.compile_id), one.start_time_us)
            is_new = key not in self._seen
            self._seen.add(key)
            # Without a name it is of a backward graph, which was traced with its forward one.
            if is_new and self._step is not None and one.co_name:
                event = Compilation(
                    step=self._step,
                    function=one.co_name,
                    site=self._site,
                    seconds=(one.duration_us or 0) / 1e6,
                    reason=(one.recompile_reason or "")[:MAX_REASON] or None,
                )
                self._note(event)


def start(session: Session) -> None:
    watch = CompilationWatch(session.loop, session.sites, session.note)
    session.subscribe(session.loop.compilation_began, COLLECTOR, watch.began)
    session.on_end(COLLECTOR, watch.note_new)
