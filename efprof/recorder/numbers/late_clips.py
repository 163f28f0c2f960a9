"""Sees whether gradients are clipped only after the update that they were for."""

import math
import sys
from collections.abc import Iterable
from typing import Any

import torch

from efprof.artifacts.events import GradientClips
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.numbers.step_numbers import parameters_of
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Note
from efprof.recorder.session.sites import Sites

COLLECTOR = "late_clips"

MAX_CALLS = 30
"""Of one line, that are compared: 2 us for each parameter and call."""

NOTED_AT = frozenset({1, 3, 10, MAX_CALLS})
"""Calls of a line after which its counts are written; and at the end."""


class ClipWatch:
    """Knows the gradients that optimizers have stepped with since the last backward pass, once anything was clipped."""

    def __init__(self, loop: Loop, sites: Sites, note: Note) -> None:
        self._loop, self._sites, self._note = loop, sites, note
        self._used: dict[int, tuple[int, int]] = {}
        """By the parameter's `id`: its gradient's, and how often that had been written to."""
        self._num_seen = 0
        """Updates so far, without those of light steps since that pass."""
        self._step_site: str | None = None
        self._clips: dict[str, GradientClips] = {}

    def note_backward(self, *_: object) -> None:
        self._used.clear()
        self._num_seen = self._loop.num_updates

    def note_step(self, _: OpenStep, optimizer: torch.optim.Optimizer) -> None:
        self._num_seen += 1
        if any(one.num_calls < MAX_CALLS for one in self._clips.values()):
            self._step_site = self._sites.of_caller(sys._getframe())
            self._used |= _gradients(parameters_of(optimizer))

    def note_clip(self, clipped: Any, bound: object) -> None:
        """The first call at a line is not counted: what had stepped before it is not known."""
        site = self._sites.of_caller(sys._getframe())
        is_to_measure = isinstance(bound, float) and math.isinf(bound)
        if site is None or is_to_measure:
            return
        event = self._clips.get(site)
        if event is None:
            self._clips[site] = GradientClips(step=self._loop.number, site=site)
            return
        if self._loop.num_updates != self._num_seen or event.num_calls == MAX_CALLS:
            return
        gradients = _gradients([clipped] if isinstance(clipped, torch.Tensor) else clipped)
        event.num_calls += 1
        if gradients and gradients.items() <= self._used.items():
            event.num_late += 1
            event.step_site = self._step_site
        if event.num_calls in NOTED_AT:
            self._note(event)

    def note_all(self) -> None:
        for event in self._clips.values():
            self._note(event)


def start(session: Session) -> None:
    watch = ClipWatch(session.loop, session.sites, session.note)
    session.subscribe(session.loop.backward_began, COLLECTOR, watch.note_backward)
    session.subscribe(session.loop.optimizer_began, COLLECTOR, watch.note_step)
    session.subscribe(session.loop.clip_began, COLLECTOR, watch.note_clip)
    session.on_end(COLLECTOR, watch.note_all)


def _gradients(parameters: Iterable[object]) -> dict[int, tuple[int, int]]:
    tensors = [one for one in parameters if isinstance(one, torch.Tensor)]
    return {id(one): (id(one.grad), one.grad._version) for one in tensors if one.grad is not None}
