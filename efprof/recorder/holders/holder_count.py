"""Counts the tensors, and the autograd graphs behind them, that each of the user's variables keeps alive."""

import sys
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from efprof.artifacts.files import no_garbage_collection
from efprof.recorder.holders.paths import Handles, Held, Key, Nodes, Place, TimeLimit, TimeLimitReached
from efprof.recorder.holders.variables import locals_of, may_read_locals
from efprof.recorder.holders.walk import Walk
from efprof.recorder.session.sites import Sites, callers

MAX_SECONDS = 0.2
"""Of computing; a count stops here, what it has not reached by then is not counted. It takes 120 to 180 ms with 2,000
modules, 2,000 losses, 100,000 tensors or 60,000 in a replay buffer (measured)."""

MAX_SHARE = 0.4
"""Of the time that is left, for one variable: several data sets in memory must not take it all."""


class HolderCount:
    """One walk from the user's variables; `held` maps scope and path to what was found there.

    `cut` are those of a variable that took too long: what was counted there is the least there is; `cut_graphs` are
    those of which that is true of the graphs alone.
    """

    def __init__(self, sites: Sites, on_container: Callable[[Any, Place, Held | None], None] | None = None) -> None:
        self.held: dict[Key, Held] = {}
        self.handles: dict[Key, Handles] = {}
        self.cut: set[Key] = set()
        self.cut_graphs: set[Key] = set()
        self.is_partial = False
        self._sites = sites
        self._end = time.thread_time() + MAX_SECONDS
        self._time_limit = TimeLimit(self._end)
        self._walk = Walk(sites, self._time_limit, on_container)

    def count(self) -> dict[Key, Held]:
        """Walk from the locals of the user's functions that are running, then from the globals of his modules."""
        with no_garbage_collection():  # it would go through the whole heap
            if sys.gettrace() is None:  # under a debugger, reading a frame's locals may write them back
                self._walk.running = set(map(id, callers(sys._getframe())))
                self._count_locals(callers(sys._getframe()))
            for module in {id(one): one for one in list(sys.modules.values())}.values():  # some have two names
                file = getattr(module, "__file__", None) or self._file_that_runs(module)
                if file and self._sites.is_user_file(file):
                    self._count_variables("global", module.__name__, file, vars(module), vars(module))
            nodes = Nodes()
            self._count_graphs(nodes)
            nodes.forget()
            for held in self._walk.holders.held.values():
                held.forget()
            self._walk.seen.clear()
        self.held = {key: held for key, held in self._walk.holders.held.items() if held.tensors}
        self._walk.holders.held.clear()
        self.handles, self._walk.holders.handles = self._walk.holders.handles, {}
        return self.held

    def _file_that_runs(self, module: object) -> str | None:
        """Of a main module from no file, as a notebook's is, what calls its code that trains by.

        Once a script is over, Python has deleted its `__file__`; its loader knows it.
        """
        if module is not sys.modules.get("__main__"):
            return None
        path = getattr(getattr(module, "__loader__", None), "path", None)
        if path is not None:
            return str(path)
        running = (frame for frame in callers(sys._getframe()) if frame.f_globals is vars(module))
        return next((frame.f_code.co_filename for frame in running if self._sites.is_user_code(frame.f_code)), None)

    def _count_locals(self, frames: Iterable[FrameType]) -> None:
        for frame in frames:
            code = frame.f_code
            if self._sites.is_user_code(code) and may_read_locals(code):
                self._count_variables("local", code.co_qualname, code.co_filename, locals_of(frame), frame)

    def _count_variables(
        self, scope: str, owner: str, file: str | None, names: dict[str, Any], within: Any = None
    ) -> None:
        for name, value in list(names.items()):
            now = time.thread_time()
            self._time_limit.limit = now + MAX_SHARE * (self._end - now)
            try:
                self._walk.visit_variable(scope, owner, file, name, value, within)
            except TimeLimitReached:
                self.is_partial = True
                self.cut |= self._walk.holders.here

    def _count_graphs(self, nodes: Nodes) -> None:
        """Behind the tensors of each holder, those of few first; each has its part of the time that is left."""
        waiting = [(key, held) for key, held in self._walk.holders.held.items() if held.roots]
        waiting.sort(key=lambda item: len(item[1].roots))
        for num_before, (key, held) in enumerate(waiting):
            now = time.thread_time()
            self._time_limit.limit = now + (self._end - now) / (len(waiting) - num_before)
            try:
                held.add_graphs(nodes, self._time_limit)
            except TimeLimitReached:
                self.is_partial = True
                self.cut_graphs.add(key)
