"""How much memory is in use now: from the CUDA allocator, or from the C allocator where there is no CUDA."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from efprof.recorder.loop.training_device import TrainingDevice
from efprof.recorder.session.kept_file import KeptFile

MemoryReader = Callable[[], tuple[int, ...]]
"""Returns (allocated bytes, reserved bytes); from the CUDA allocator also what `BoundaryMemory` says of it alone."""

UNKNOWN: Final = (0, 0)
"""Of an allocator that tells nothing of its memory, as many that are not PyTorch's own: nothing is made of it."""

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

_MALLINFO2_FIELDS: Final = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _MALLINFO2_FIELDS]


class Memory:
    """Reads memory from the best source there is, chosen at the first step.

    Not earlier: asking torch whether there is CUDA starts the driver, after which the program could no longer
    set CUDA_VISIBLE_DEVICES or fork a process that uses the device.
    """

    def __init__(self, device: TrainingDevice | None = None) -> None:
        self._device = device or TrainingDevice()
        self._source: tuple[str, MemoryReader] | None = None

    def choose_again(self) -> None:
        """There may be a better source by now."""
        self._source = None
        self.__dict__.pop("read", None)

    def choose(self) -> str:
        """The name of the source, as `run.json` records it."""
        if self._source is None:
            self._source = _best_source(self._device)
            self.read = self._source[1]  # type: ignore[method-assign] # every later read goes there at once
        return self._source[0]

    def read(self) -> tuple[int, ...]:
        """What a `MemoryReader` gives."""
        self.choose()
        assert self._source is not None
        return self._source[1]()


def _best_source(device: TrainingDevice) -> tuple[str, MemoryReader]:
    device.look()
    if device.index is not None:
        return "CUDA allocator", lambda: _read_cuda(device)
    allocator = _malloc_reader()
    if allocator is not None:
        return "C allocator (malloc)", allocator
    return "resident set", _resident_reader()


class ResidentSet:
    """The process's resident set, from a file kept open."""

    def __init__(self) -> None:
        self._file = _open_statm()

    def read(self) -> int:
        """Its size now; 0 where the system does not tell. 1.3 us in a loop of reads, 30 us after a training step."""
        return int(os.pread(self._file.descriptor(), 64, 0).split()[1]) * PAGE_BYTES if self._file is not None else 0


def _read_cuda(device: TrainingDevice) -> tuple[int, ...]:
    stats = device.statistics()
    if stats is None:
        return UNKNOWN
    return (
        stats["allocated_bytes"]["all"]["current"],
        stats["reserved_bytes"]["all"]["current"],
        stats["active_bytes"]["all"]["current"],
        stats["inactive_split_bytes"]["all"]["current"],
        stats["num_alloc_retries"],
    )


def _malloc_reader() -> MemoryReader | None:
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):  # not glibc 2.33 or newer
        return None
    mallinfo2.restype = _Mallinfo2

    def read() -> tuple[int, int]:
        # About 1 us on an ordinary heap (measured); it walks the free chunks, so 100,000 holes cost 5 ms.
        info = mallinfo2()
        return info.uordblks + info.hblkhd, info.arena + info.hblkhd

    return read


def _resident_reader() -> MemoryReader:
    resident = ResidentSet()

    def read() -> tuple[int, int]:
        size = resident.read()
        return size, size

    return read


def _open_statm() -> KeptFile | None:
    try:
        return KeptFile(Path("/proc/self/statm"), os.O_RDONLY)
    except OSError:
        return None
