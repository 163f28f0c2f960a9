"""Counts backward passes with anomaly detection or a profiler of the program's on, as what stalls a step."""

from functools import partial

import torch

from efprof.recorder.loop.open_step import OpenStep, count_call
from efprof.recorder.session.session import Session
from efprof.recorder.session.sites import callers
from efprof.recorder.windows.profiled_window import ProfiledWindow

ANOMALY, PROFILER, OLDER = "anomaly detection", "torch.profiler", "torch.autograd.profiler"
"""The second one makes one of the third."""
KINDS = {
    torch.autograd.set_detect_anomaly: ANOMALY,
    torch.autograd.detect_anomaly: ANOMALY,
    torch.profiler.profile: PROFILER,
    torch.autograd.profiler.profile: OLDER,
}


def start(session: Session) -> None:
    called: dict[str, tuple[str | None, tuple[str, ...]]] = {}

    def note_site(mode: str, *_: object) -> None:
        """A window of ours makes a profiler too."""
        codes = (frame.f_code for frame in callers())
        if ProfiledWindow.start.__code__ not in codes:
            called[mode] = session.sites.line_and_library()

    def count(step: OpenStep, *_: object) -> None:
        """At the line that calls backward where the mode was set out of sight."""
        is_profiled = torch._C._autograd._profiler_enabled() and step.window is None
        for mode, older, is_on in ((ANOMALY, ANOMALY, torch.is_anomaly_enabled()), (PROFILER, OLDER, is_profiled)):
            if is_on:
                site, library = called.get(mode) or called.get(older) or (None, ())
                count_call(step.stalls, site or session.sites.of_caller(), mode, 0, library)

    for kind, mode in KINDS.items():
        session.before(kind, "__init__", "debug_modes", partial(note_site, mode))
    session.listen("debug_modes", backward_began=count)
