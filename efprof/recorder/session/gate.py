"""Where a training waits for its turn in a comparison, and where it ends after so many steps.

It waits after an update of an optimizer, at the same one in every rank: whether a rank records a step in full or not,
none waits for another one's gradients then.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from efprof.artifacts.events import TrainingStopped
from efprof.processes import GATE_VARIABLE, STEPS_VARIABLE, connected_socket
from efprof.recorder.hooks.loop_hooks import num_running_steps
from efprof.recorder.loop.loop import Loop
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.session.session import Session

NOTED_STEP = 1
"""When the first one is over, what trains has been imported: is it of the side's own tree?"""


class Gate:
    """Each message is a line of JSON: `{"update": 23, "updates": 3, "seconds": 0.1}`, and `{"until": 27}` in return.

    The first update of a turn is not in these seconds: it fills caches that the other side has emptied. The first
    message comes after the first update and has none. In return for the last one comes `{"until": null}`.
    """

    def __init__(self, loop: Loop, path: Path, end: Callable[[], None]) -> None:
        self._loop, self._path, self._end = loop, path, end
        self._file: TextIOWrapper | None = None
        self._number = self._until = -1
        """Of the last update, and of the one after which it waits: all ranks count alike, whatever they record."""
        self._began = 0, 0
        """The first one of the turn, with the instant at which that was over."""
        self._stepped = set[int]()
        """The optimizers of the update that goes on, by their first parameter: one may be made anew."""

    def updated(self, optimizer: torch.optim.Optimizer) -> None:
        """An update is over when one of its optimizers steps again: of a GAN's two both belong to it."""
        which = id(next((one for group in optimizer.param_groups for one in group["params"]), None))
        if self._number >= 0 and which not in self._stepped:
            self._stepped.add(which)
            return
        self._stepped = {which}
        self._number += 1
        if self._began[1] == 0:
            self._began = self._number, _device_is_done()
        if self._number < self._until:
            return
        first, since = self._began
        seconds = (_device_is_done() - since) / 1e9
        said = {"update": self._number, "updates": self._number - first, "seconds": seconds} | self._about()
        try:
            if self._file is None:
                self._file = connected_socket(self._path).makefile("rw", encoding="utf-8")
            self._file.write(json.dumps(said) + "\n")
            self._file.flush()
            answer = self._file.readline()
        except OSError:  # whoever listened has ended
            answer = ""
        until = json.loads(answer)["until"] if answer else None
        self._loop.mark_interrupted()
        self._began = 0, 0
        if until is None:
            self._end()
        else:
            self._until = until

    def _about(self) -> dict[str, Any]:
        """How many ranks train, and what of its device's memory this one holds and is free."""
        distributed = torch.distributed
        has_ranks = distributed.is_available() and distributed.is_initialized()
        about: dict[str, Any] = {"ranks": distributed.get_world_size() if has_ranks else 1}
        if _has_cuda():
            free, total = torch.cuda.mem_get_info()
            about |= {"held_share": torch.cuda.max_memory_reserved() / total, "free_share": free / total}
        return about


def _device_is_done() -> int:
    """When the device has done what it was given so far, by `perf_counter_ns`."""
    if _has_cuda():
        torch.cuda.synchronize()
    elif not torch.cuda.is_available() and torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return perf_counter_ns()


def _has_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def start(session: Session) -> None:
    path, num_steps = os.environ.get(GATE_VARIABLE), int(os.environ.get(STEPS_VARIABLE, "0"))
    loop = session.loop

    def end() -> None:
        session.note(TrainingStopped(step=loop.number))
        session.end()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # the program may have put anything there
                stream.flush()
        os._exit(0)

    def step_began(step: OpenStep) -> None:
        if tree is not None and step.number == NOTED_STEP:
            tree.note_others()
        if num_steps and step.number >= num_steps:  # every step is recorded in full then
            end()

    tree: Any = sys.modules.get("efprof_tree")
    if tree is not None or num_steps:
        session.listen("gate", step_began=step_began)
    if tree is not None:
        session.on_end("gate", lambda: tree.note_others())
    if not path:
        return
    gate = Gate(loop, Path(path), end)
    loop.sampling.has_bursts = False

    def updated(optimizer: torch.optim.Optimizer, *_: object) -> None:
        is_outermost = num_running_steps() == 1  # an optimizer may step another one
        if is_outermost and loop.thread.is_training_thread and not loop.thread.is_capturing:
            gate.updated(optimizer)

    session.undo_at_end(register_optimizer_step_post_hook(session.shell.guarded("gate", updated)).remove)
