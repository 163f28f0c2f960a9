"""Runs programs without recording them, one after the other, and writes when each one's optimizer stepped.

`python -m tests.casebook._bare OUT is_peak '[["program.py", "--healthy"], ...]'` writes OUT-0, OUT-1 and so on: for
each step nanoseconds, and where `is_peak` is 1 the most bytes that were allocated till then. Each program runs in a
fork of a process that has only imported torch, which saves the two seconds of that. Memory is read every millisecond,
before each backward pass and after each step: a busy machine may not let us look in between.
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

memory, backward = Memory(), torch.autograd.backward
steps: list[tuple[int, int]] = []
first: list[Optimizer] = []
"""Of several optimizers that take turns the first one's steps are the training's."""
peaks = [0]


def look() -> None:
    is_cuda = torch.cuda.is_initialized()
    peaks[0] = torch.cuda.max_memory_allocated() if is_cuda else max(peaks[0], memory.read()[0])


def looked(*arguments: Any, **options: Any) -> None:
    look()
    backward(*arguments, **options)


def keep_looking() -> None:
    while True:
        look()
        time.sleep(0.001)


def step(optimizer: Optimizer, *_: Any) -> None:
    first[:] = first or [optimizer]
    if optimizer is first[0]:
        steps.append((time.perf_counter_ns(), peaks[0]))


def run(program: list[str], out: Path, *, is_peak: bool) -> None:
    """Run it as if it had been started; what it raises is its own affair."""
    sys.argv, sys.path[0] = program, str(Path(program[0]).parent)
    if is_peak:
        torch.autograd.backward = looked
        register_optimizer_step_post_hook(lambda *_: look())
        threading.Thread(target=keep_looking, daemon=True).start()
    register_optimizer_step_post_hook(step)
    try:
        runpy.run_path(program[0], run_name="__main__")
    finally:
        out.write_text(json.dumps(steps))


if __name__ == "__main__":
    for number, command in enumerate(json.loads(sys.argv[3])):
        child = os.fork()
        if not child:
            run(command, Path(f"{sys.argv[1]}-{number}"), is_peak=sys.argv[2] == "1")
            sys.exit()
        os.waitpid(child, 0)
