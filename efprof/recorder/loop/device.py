"""The device that training is on: which one it is, how much memory is in use, and how long a stage takes there."""

import ctypes
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from efprof.artifacts.steps import StepRecord
from efprof.recorder.session.foreign import is_of_torch, is_tensor
from efprof.recorder.session.shell import Guard
from efprof.recorder.session.writing import KeptFile


class TrainingDevice:
    """It is where the first loss is; until then where PyTorch has memory: the current device, else the one with most.

    `guard` makes a function harmless: once it has failed, as with allocators that have no statistics, it answers None.
    """

    def __init__(self, guard: Guard = lambda function: function) -> None:
        self.index: int | None = None
        """None where the program has nothing on a device, as far as is known."""
        self.statistics: Callable[[], dict[str, Any] | None] = guard(
            lambda: None if self.index is None else torch._C._cuda_memoryStats(self.index)
        )
        """The allocator's raw counters: flattening them, as `torch.cuda.memory_stats` does, takes ten times as long."""
        self.highest_reserved_bytes = 0
        """That its allocator's own mark showed when the program reset it."""
        self._with_most_memory = guard(_with_most_memory)
        self._has_loss = False

    def look(self) -> None:
        if not self._has_loss and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self.index = self._with_most_memory()

    def keep_mark(self, *_: object) -> None:
        """The program is about to reset the allocator's marks."""
        stats = self.statistics() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        if stats:
            self.highest_reserved_bytes = max(self.highest_reserved_bytes, stats["reserved_bytes"]["all"]["peak"])

    def see(self, losses: object) -> bool:
        """A step's first backward pass is called on these: whether the first one is on another device than thought."""
        loss, before = losses[0] if isinstance(losses, list | tuple) and losses else losses, self.index
        if is_tensor(loss) and is_of_torch(loss) and loss.is_cuda and not self._has_loss:
            self.index, self._has_loss = loss.device.index, True
        return self.index != before


def _with_most_memory() -> int | None:
    """Asking the allocator starts no context."""
    indices, current = range(torch.cuda.device_count()), torch.cuda.current_device()
    reserved = [torch._C._cuda_memoryStats(index)["reserved_bytes"]["all"]["current"] for index in indices]
    most = max(indices, key=lambda index: (index == current and reserved[index] > 0, reserved[index]))
    return most if reserved[most] else None


MemoryReader = Callable[[], tuple[int, ...]]
"""Returns (allocated bytes, reserved bytes); from the CUDA allocator also what `BoundaryMemory` says of it alone."""

UNKNOWN = (0, 0)
"""Of an allocator that tells nothing of its memory, as many that are not PyTorch's own: nothing is made of it."""

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_MALLINFO2_FIELDS = (
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
        self.device = device or TrainingDevice()
        self._source: tuple[str, MemoryReader] | None = None
        self.is_collecting = False
        """Whether the recorder itself has garbage collected, which tells nothing of the program's."""

    def choose(self) -> str:
        """Choose it now, or anew; its name."""
        self._source = _best_source(self.device)
        return self._source[0]

    def read(self) -> tuple[int, ...]:
        self._source = self._source or _best_source(self.device)
        return self._source[1]()

    def highest_mark(self) -> int | None:
        """The CUDA allocator's own, since the program set it back last; None where it has none, or there is none."""
        stats = self.device.statistics()
        return stats["allocated_bytes"]["all"]["peak"] if stats else None


def _best_source(device: TrainingDevice) -> tuple[str, MemoryReader]:
    device.look()
    if device.index is not None:
        return "CUDA allocator", lambda: _read_cuda(device)
    allocator = _malloc_reader()
    if allocator is not None:
        return "C allocator (malloc)", allocator
    resident = ResidentSet()
    return "resident set", lambda: (resident.read(),) * 2


class ResidentSet:
    def __init__(self) -> None:
        self._file: KeptFile | None = None
        with suppress(OSError):
            self._file = KeptFile(Path("/proc/self/statm"), os.O_RDONLY)

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
        max(device.highest_reserved_bytes, stats["reserved_bytes"]["all"]["peak"]),
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


class DeviceEvents:
    """CUDA events, each of the device that it was first recorded on; those that are given back are used again."""

    def __init__(self, **settings: bool) -> None:
        self._settings = settings
        self._free = defaultdict[torch.device, list[Any]](list)

    def record(self, stream: Any) -> Any:
        free = self._free[stream.device]
        event = free.pop() if free else torch.cuda.Event(**self._settings)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def give_back(self, events: Iterable[Any]) -> None:
        for event in events:
            self._free[event.device].append(event)


Mark = tuple[Any, Any]
"""The events at a stage's start and end; None where there is no device."""


class DeviceClock:
    """Records an event at each end of a stage, on the current stream of the device that the training is on then."""

    def __init__(self, device: TrainingDevice, guard: Guard) -> None:
        self._device = device
        self._guard = guard
        self._events = DeviceEvents(enable_timing=True)
        self._record = guard(lambda device: self._events.record(torch.cuda.current_stream(device)))
        self._start: Any = None

    def open(self) -> None:
        self._start = None if self._device.index is None else self._record(self._device.index)

    def close(self) -> Mark:
        return self._start, None if self._start is None else self._record(self._start.device)

    def reader(self, record: StepRecord, marks: list[Mark]) -> Callable[[], bool]:
        """The step ends, whose last spans have these marks: fills `device_us` of them and of it, once the device has
        passed them all; returns whether it has. The step's own is not known where it was on several devices.
        """
        spans, first = record.spans[-len(marks) :], marks[0][0]
        last = None if first is None else self._record(first.device)

        def read() -> bool:
            timed = [(span, start, end) for span, (start, end) in zip(spans, marks, strict=False) if start and end]
            if not all(event.query() for event in (*([last] if last else ()), *(end for _, _, end in reversed(timed)))):
                return False
            if last:
                if len(timed) == len(marks) and all(start.device == first.device for _, start, _ in timed):
                    record.device_us = first.elapsed_time(last) * 1000
                self._events.give_back((last,))
            for span, start, end in timed:
                span.device_us = start.elapsed_time(end) * 1000
                self._events.give_back((start, end))
            return True

        guarded = self._guard(read)
        return lambda: guarded() is not False
