"""Records the CUDA allocator's history from before the model is built, and dumps a snapshot of it.

Never run on a GPU so far: the machine this was written on has none.
"""

import pickle
import time
from typing import Any

import torch

from efprof.artifacts.events import WindowClosed, WindowOpened
from efprof.artifacts.steps import StepRecord
from efprof.recorder.open_step import OpenStep
from efprof.recorder.session import Session

MAX_ENTRIES = 1_000_000
"""Several kilobytes each once dumped: enough for some hundred steps, and bounded."""

LAST_STEP = 3
"""The history ends before the first profiler window: the two are never on in the same step."""


class CudaMemory:
    """One snapshot after the first steps, and another if the program dies of memory before."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_on = False
        self._start = 0.0

    def open(self) -> None:
        """Turn the history on, once CUDA is initialised: turning it on would initialise it."""
        self._start = time.perf_counter()
        self._is_on = True
        self._session.note(WindowOpened(at_ns=time.time_ns(), step=0, window="memory-1", why="cold start"))
        torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks="python", max_entries=MAX_ENTRIES)

    def begin(self, step: OpenStep) -> None:
        """Mark the steps that the history slows down."""
        if self._is_on:
            step.window = "memory-1"

    def finish(self, step: OpenStep, _: StepRecord) -> None:
        """Dump and turn off after the last step."""
        if self._is_on and step.number >= LAST_STEP:
            self.close()

    def close(self) -> None:
        """Write what was recorded; taking the snapshot comes first, since turning off clears it."""
        if not self._is_on:
            return
        self._is_on = False
        self._session.loop.disturb()
        start = time.perf_counter()
        path = self._session.rank_folder / "memory-1.pickle"
        part = path.with_name(f".{path.name}.part")
        part.write_bytes(pickle.dumps(torch.cuda.memory._snapshot(), protocol=4))
        part.rename(path)
        torch.cuda.memory._record_memory_history(enabled=None)
        seconds = time.perf_counter() - start
        number = self._session.step_number
        self._session.note(
            WindowClosed(at_ns=time.time_ns(), step=number, window="memory-1", seconds=seconds, files=[path.name])
        )


def start(session: Session) -> None:
    """Wait for CUDA to be initialised by the program itself."""
    if torch.version.cuda is None or not session.options.memory_steps:
        return
    memory = CudaMemory(session)
    open_guarded: Any = session.shell.guarded("cuda_memory", memory.open)
    torch.cuda._lazy_call(open_guarded)  # type: ignore[no-untyped-call]
    session.subscribe(session.loop.step_began, "cuda_memory", memory.begin)
    session.subscribe(session.loop.step_ended, "cuda_memory", memory.finish)
    session.on_end("cuda_memory", memory.close)
