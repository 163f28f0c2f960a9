"""Sees whether gradients are clipped only after the update that they were for, or where there are none."""

import math
from collections.abc import Iterable
from typing import Any

import torch

from efprof.artifacts.events import GradientClips
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.numbers.step_numbers import parameters_of
from efprof.recorder.session.session import Session

MAX_CALLS = 30
"""Of one line, that are compared: 2 us for each parameter and call."""

NOTED_AT = frozenset({1, 3, 10, MAX_CALLS})
"""Calls of a line after which its counts are written; and at the end."""


def start(session: Session) -> None:
    loop, sites = session.loop, session.sites
    used: dict[int, tuple[int, int]] = {}
    """What optimizers have stepped with since the last backward pass, once anything was clipped: by the parameter's
    `id` its gradient's, and how often that had been written to."""
    num_seen = 0
    """Updates so far, without those of light steps since that pass."""
    step_site: str | None = None
    clips: dict[str, GradientClips] = {}

    def note_backward(*_: object) -> None:
        nonlocal num_seen
        used.clear()
        num_seen = loop.num_updates

    def note_step(_: OpenStep, optimizer: torch.optim.Optimizer) -> None:
        nonlocal num_seen, step_site
        num_seen += 1
        if any(one.num_calls < MAX_CALLS for one in clips.values()):
            step_site = sites.of_caller()
            used.update(_gradients(parameters_of(optimizer)))

    def note_clip(clipped: Any, bound: object) -> None:
        """The first call at a line is not counted: what had stepped before it is not known."""
        site = sites.of_caller()
        is_to_measure = isinstance(bound, float) and math.isinf(bound)
        if site is None or is_to_measure:
            return
        event = clips.get(site)
        if event is None:
            clips[site] = GradientClips(step=loop.number, site=site)
            return
        if loop.num_updates != num_seen or event.num_calls == MAX_CALLS:
            return
        gradients = _gradients([clipped] if isinstance(clipped, torch.Tensor) else clipped)
        event.num_calls += 1
        event.num_empty += not gradients
        event.limit = float(bound) if isinstance(bound, int | float) else None
        if gradients and gradients.items() <= used.items():
            event.num_late += 1
            event.step_site = step_site
        if event.num_calls in NOTED_AT:
            session.note(event)

    def note_all() -> None:
        for event in clips.values():
            session.note(event)

    session.listen("late_clips", backward_began=note_backward, optimizer_began=note_step, clip_began=note_clip)
    session.on_end("late_clips", note_all)


def _gradients(parameters: Iterable[object]) -> dict[int, tuple[int, int]]:
    tensors = [one for one in parameters if isinstance(one, torch.Tensor)]
    return {id(one): (id(one.grad), one.grad._version) for one in tensors if one.grad is not None}
