"""Sees whether gradients are clipped while a gradient scaler has yet to divide them by its scale."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from efprof.artifacts.events import ScaledClips
from efprof.recorder.loop.loop import Loop
from efprof.recorder.numbers.late_values import LateValues, on_device
from efprof.recorder.numbers.step_numbers import is_read_late, outside_modes, parameters_of, read_value
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Guard, Note
from efprof.recorder.session.sites import Sites

COLLECTOR = "scaled_clips"

MAX_UPDATES = 30
"""Of one line that clips, that are looked at."""

NOTED_AT = frozenset({3, 10, MAX_UPDATES})
"""Updates after which the counts are written; and at the end."""


@dataclass(eq=False)
class ScaledClipWatch:
    _loop: Loop
    _sites: Sites
    _late: LateValues
    _note: Note
    _guard: Guard
    _clips: dict[str, tuple[float, set[int]]] = field(default_factory=dict)
    """Since the last backward pass, by their line: the limit, and the `id`s of the parameters."""
    _events: dict[tuple[str, str | None], ScaledClips] = field(default_factory=dict)

    def backward_began(self, *_: object) -> None:
        self._clips.clear()

    def clip_began(self, clipped: Any, limit: object) -> None:
        if not isinstance(limit, int | float) or not math.isfinite(limit):  # an infinite one only measures
            return
        site = self._sites.of_caller()
        if site is None or self._has_enough(site):
            return
        parameters = [clipped] if isinstance(clipped, torch.Tensor) else clipped
        _, ids = self._clips.setdefault(site, (float(limit), set()))
        ids.update(map(id, parameters))

    def scaler_step_began(self, optimizer: torch.optim.Optimizer, scale: torch.Tensor | None) -> None:
        self._look(optimizer, scale)

    def unscaling_began(self, optimizer: torch.optim.Optimizer, scale: torch.Tensor) -> None:
        self._look(optimizer, scale, is_unscaled=True)

    def _look(self, optimizer: torch.optim.Optimizer, scale: torch.Tensor | None, *, is_unscaled: bool = False) -> None:
        """Each clip counts once, at the unscaling or the step that comes first."""
        if not self._clips:
            return
        ids, here = set(map(id, parameters_of(optimizer))), self._sites.of_caller()
        for site, (limit, clipped) in self._clips.items():
            if not clipped.isdisjoint(ids):
                clipped -= ids
                event = self._count(site, None if is_unscaled else here, limit, scale)
                event.unscale_site = here if is_unscaled else None

    def at_end(self) -> None:
        for event in self._events.values():
            self._note(event)

    def _has_enough(self, site: str) -> bool:
        return any(event.num_updates >= MAX_UPDATES for (of, _), event in self._events.items() if of == site)

    def _count(self, site: str, step_site: str | None, limit: float, scale: torch.Tensor | None) -> ScaledClips:
        new = ScaledClips(step=self._loop.number, site=site, step_site=step_site, limit=limit)
        event = self._events.setdefault((site, step_site), new)
        event.num_updates += 1
        event.is_varied |= event.limit != limit
        event.limit = limit

        def judge(values: list[float]) -> None:
            event.scale = values[0]
            event.num_scaled += event.scale > max(1.0, limit)

        step = self._loop.step
        if scale is not None and scale.is_cpu:
            with outside_modes():
                judge([float(read_value(scale))])
        elif scale is not None and step is not None and is_read_late(scale):
            self._late.owe(step.late, [on_device(scale)], self._guard(judge))
        if event.num_updates in NOTED_AT:
            self._note(event)
        return event


def start(session: Session) -> None:
    late, guard = session.late_values, session.shell.guard(COLLECTOR)
    session.attach(COLLECTOR, ScaledClipWatch(session.loop, session.sites, late, session.note, guard))
