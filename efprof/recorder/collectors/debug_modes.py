"""Counts backward passes with anomaly detection or a profiler of the program's on, as what stalls a step."""

import sys
from functools import partial

import torch

from efprof.recorder.hooks.patching import call_before
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep, count_call
from efprof.recorder.session.session import Session
from efprof.recorder.session.sites import Sites, callers
from efprof.recorder.windows.profiled_window import ProfiledWindow

ANOMALY, PROFILER, OLDER = "anomaly detection", "torch.profiler", "torch.autograd.profiler"
"""The second one makes one of the third."""
KINDS = {
    torch.autograd.set_detect_anomaly: ANOMALY,
    torch.autograd.detect_anomaly: ANOMALY,
    torch.profiler.profile: PROFILER,
    torch.autograd.profiler.profile: OLDER,
}


class DebugModes:
    def __init__(self, loop: Loop, sites: Sites) -> None:
        self._loop, self._sites = loop, sites
        self._site_of: dict[str, str | None] = {}

    def note_site(self, mode: str, *_: object) -> None:
        """A window of ours makes a profiler too."""
        codes = (frame.f_code for frame in callers(sys._getframe()))
        if ProfiledWindow.start.__code__ not in codes:
            self._site_of[mode] = self._sites.of_caller(sys._getframe())

    def backward_began(self, step: OpenStep, *_: object) -> None:
        if torch.is_anomaly_enabled():
            self._count(step, ANOMALY, self._site_of.get(ANOMALY))
        if torch._C._autograd._profiler_enabled() and step.window is None:
            self._count(step, PROFILER, self._site_of.get(PROFILER) or self._site_of.get(OLDER))

    def _count(self, step: OpenStep, mode: str, site: str | None) -> None:
        """At the line that calls backward where the mode was set out of sight."""
        site = site or self._sites.of_caller(sys._getframe())
        if site is not None:
            count_call(step.waits.stalls, site, mode, 0)


def start(session: Session) -> None:
    modes = DebugModes(session.loop, session.sites)
    for kind, mode in KINDS.items():
        note = session.shell.guarded("debug_modes", partial(modes.note_site, mode))
        session.undo_at_end([call_before(kind, "__init__", note)])
    session.subscribe(session.loop.backward_began, "debug_modes", modes.backward_began)
