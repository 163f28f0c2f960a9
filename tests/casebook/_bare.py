"""Runs programs without recording them, one after the other, and writes when each one's optimizer stepped.

`python -m tests.casebook._bare OUT is_peak '[["program.py", "--healthy"], ...]'` writes OUT-0, OUT-1 and so on: for
each step nanoseconds, and where `is_peak` is 1 the most bytes that were allocated till then. Each program runs in a
fork of a process that has only imported torch, which saves the two seconds of that.
"""

import json
import os
import runpy
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from efprof.recorder.loop.device import Memory

WATCHED_EVERY_S = 0.001
"""Memory is read before each backward pass and after each step too: a busy machine may not let us look in between."""


class Watch:
    """The highest memory so far; of several optimizers that take turns the first one's steps are the training's."""

    def __init__(self) -> None:
        self.memory, self.peak_bytes = Memory(), 0
        self.first: Optimizer | None = None
        self.steps: list[tuple[int, int]] = []

    def look(self) -> None:
        if torch.cuda.is_initialized():
            self.peak_bytes = torch.cuda.max_memory_allocated()
        else:
            self.peak_bytes = max(self.peak_bytes, self.memory.read()[0])

    def step(self, optimizer: Optimizer, *_: Any) -> None:
        self.first = self.first or optimizer
        if optimizer is self.first:
            self.steps.append((time.perf_counter_ns(), self.peak_bytes))

    def look_all_along(self) -> None:
        backward = torch.autograd.backward

        def looked(*arguments: Any, **options: Any) -> None:
            self.look()
            backward(*arguments, **options)

        torch.autograd.backward = looked
        register_optimizer_step_post_hook(lambda *_: self.look())
        threading.Thread(target=self._keep_looking, daemon=True).start()

    def _keep_looking(self) -> None:
        while True:
            self.look()
            time.sleep(WATCHED_EVERY_S)


def run(program: list[str], out: Path, *, is_peak: bool) -> None:
    """Run it as if it had been started; what it raises is its own affair."""
    watch, sys.argv = Watch(), program
    sys.path[0] = str(Path(program[0]).parent)
    if is_peak:
        watch.look_all_along()
    register_optimizer_step_post_hook(watch.step)
    try:
        runpy.run_path(program[0], run_name="__main__")
    finally:
        out.write_text(json.dumps(watch.steps))


if __name__ == "__main__":
    for number, command in enumerate(json.loads(sys.argv[3])):
        child = os.fork()
        if not child:
            run(command, Path(f"{sys.argv[1]}-{number}"), is_peak=sys.argv[2] == "1")
            sys.exit()
        os.waitpid(child, 0)
