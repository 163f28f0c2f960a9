"""The CUDA allocator's own history of what it did: turned on and off, and written to a file.

Never run on a GPU so far: the machine this was written on has none.
"""

import gc
import inspect
import pickle
from pathlib import Path
from typing import Any

import torch

MAX_ENTRIES = 1_000_000
"""Several kilobytes each once dumped: enough for some hundred steps, and bounded. The oldest give way."""

PICKLE_PROTOCOL = 4
"""The newest one that PyTorch's memory_viz page reads (pytorch#183842)."""


def is_possible() -> bool:
    """Whether this build of torch has such a history at all."""
    return hasattr(torch._C, "_cuda_record_memory_history")


def why_backend_has_none() -> str | None:
    """Why this process's allocator keeps no history; ask only once CUDA is initialised."""
    backend: str = torch.cuda.memory.get_allocator_backend()
    return None if backend == "native" else f"the allocator backend {backend} keeps no history of its memory"


class CudaHistory:
    """There is one for all devices of the process, and whoever turns it off clears it."""

    def __init__(self) -> None:
        # Taken before it is replaced, to see the program's calls and not our own.
        self._record: Any = torch.cuda.memory._record_memory_history

    @property
    def is_on(self) -> bool:
        """Whether someone, we or the program, has turned it on."""
        return torch._C._cuda_isHistoryEnabled()

    def turn_on(self) -> None:
        """With Python stacks alone: unwinding C++ makes a snapshot take minutes (torchtitan#3628)."""
        more = {"skip_actions": ["free_requested"]} if _can_skip_actions() else {}
        self._record(enabled="all", context="all", stacks="python", max_entries=MAX_ENTRIES, **more)

    def turn_off(self) -> None:
        """What was not written before is lost."""
        self._record(enabled=None)

    def write(self, path: Path) -> None:
        """Write all segments, and the history as far as it reaches."""
        write_snapshot(path)


def write_snapshot(path: Path) -> None:
    """Write the allocator's state under this name in one instant; raises OSError and leaves nothing half-written."""
    part = path.with_name(f".{path.name}.part")
    was_on = gc.isenabled()
    gc.disable()  # a snapshot is millions of objects and no garbage
    try:
        with part.open("wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file, protocol=PICKLE_PROTOCOL)
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
        if was_on:
            gc.enable()


def _can_skip_actions() -> bool:
    """Torch 2.11 and newer; a replay needs the end of a free and not the request for it, a third of all entries."""
    return "skip_actions" in inspect.signature(torch.cuda.memory._record_memory_history).parameters
