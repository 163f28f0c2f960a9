"""How much memory is in use now: from the CUDA allocator, or from the C allocator where there is no CUDA."""

import ctypes
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from efprof.recorder.kept_file import KeptFile

MemoryReader = Callable[[], tuple[int, ...]]
"""Returns (allocated bytes, reserved bytes); from the CUDA allocator also what `BoundaryMemory` says of it alone."""

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

MIN_INTERVAL_NS: Final = 20_000_000
"""A read costs 1.3 us in a loop of reads and 30 us after a training step, when the kernel's data has left the caches
(both measured): a short step should not pay it each time."""

MAX_READING_SHARE: Final = 0.001
"""Of a step's time, for each kind of costly reading: a tenth of what the whole recorder may cost."""

SHORT_STEP_NS: Final = 20_000_000
MAX_READING_NS: Final = 2_000
"""In a short step the recorder may cost 40 us in all, whatever the share."""

NUM_FULL_STEPS: Final = 20
"""The first steps are read in full at any cost: many a run has hardly any others."""

NUM_WELL_READ_STEPS: Final = 60
WELL_READ_SHARE: Final = 0.01
"""Up to here for as much as the whole recorder may cost later: where memory leaks, the heap grows so fragmented that
reading it at each boundary took 5 % of a step at the 60th (measured)."""

MAX_STRIDE: Final = 100

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

    def __init__(self) -> None:
        self._source: tuple[str, MemoryReader] | None = None

    def choose_again(self) -> None:
        """There may be a better source by now."""
        self._source = None
        self.__dict__.pop("read", None)

    def choose(self) -> str:
        """The name of the source, as `run.json` records it."""
        if self._source is None:
            self._source = _best_source()
            self.read = self._source[1]  # type: ignore[method-assign] # every later read goes there at once
        return self._source[0]

    def read(self) -> tuple[int, ...]:
        """What a `MemoryReader` gives."""
        self.choose()
        assert self._source is not None
        return self._source[1]()


def _best_source() -> tuple[str, MemoryReader]:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "CUDA allocator", _read_cuda
    allocator = _malloc_reader()
    if allocator is not None:
        return "C allocator (malloc)", allocator
    return "resident set", _resident_reader()


class ReadingPlan:
    """Which steps pay for a costly reading: all of the first ones, later so many that it stays within its share.

    glibc walks every hole of the heap to tell its size, which takes 0.5 us on a young heap and 3 ms on a fragmented
    one; the norm of all gradients reads every one of them (all measured).
    """

    def __init__(self, *, max_stride: int = MAX_STRIDE) -> None:
        self._max_stride = max_stride
        self._next = 0

    def is_due(self, step: int) -> bool:
        """Whether this step is read."""
        return step >= self._next

    @property
    def next_step(self) -> int:
        """The first one that will be read."""
        return self._next

    def note(self, step: int, reading_ns: int, step_ns: int) -> None:
        """A step that took `step_ns` was read, which took `reading_ns` of it."""
        affordable = MAX_READING_NS if step_ns < SHORT_STEP_NS else MAX_READING_SHARE * step_ns
        if step < NUM_WELL_READ_STEPS:
            affordable = max(affordable, WELL_READ_SHARE * step_ns)
        self._next = step + (
            1 if step < NUM_FULL_STEPS else min(self._max_stride, max(1, math.ceil(reading_ns / affordable)))
        )


class ResidentSet:
    """The process's resident set, from a file kept open, at most once per MIN_INTERVAL_NS."""

    def __init__(self) -> None:
        self._file = _open_statm()
        self._read_ns = 0
        self._bytes = 0

    def bytes_at(self, now_ns: int) -> int:
        """Its size now, or a moment ago; 0 where the system does not tell."""
        if self._file is not None and now_ns - self._read_ns >= MIN_INTERVAL_NS:
            self._read_ns = now_ns
            self._bytes = int(os.pread(self._file.descriptor(), 64, 0).split()[1]) * PAGE_BYTES
        return self._bytes


def _read_cuda() -> tuple[int, ...]:
    # The raw nested counters: flattening them, as torch.cuda.memory_stats does, costs ten times as much.
    stats = torch._C._cuda_memoryStats(torch.cuda.current_device())
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
        size = resident.bytes_at(time.perf_counter_ns())
        return size, size

    return read


def _open_statm() -> KeptFile | None:
    try:
        return KeptFile(Path("/proc/self/statm"), os.O_RDONLY)
    except OSError:
        return None
