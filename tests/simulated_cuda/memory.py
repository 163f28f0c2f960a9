"""Memory of simulated devices: our own model of the allocator serves it, counts it and writes its history."""

import functools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import torch

from efprof.facts.allocator.blocks import Block
from efprof.facts.allocator.settings import AllocatorSettings, rounded_bytes, segment_bytes
from efprof.units import MIB
from tests.facts.allocator.recording import Recording

OWN_FILES = frozenset(
    str(path)
    for path in Path(__file__).parent.glob("*.py")
    if not path.name.startswith("test_") and path.name != "assumptions.py"
)
"""They stand for torch, so they are no user's."""
POOLS = ("all", "small_pool", "large_pool")
COUNTED = ("allocation", "segment", "active", "allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
SMALL_SEGMENT_BYTES = 2 * MIB
"""All segments of the pool of small blocks have this size, and no others."""
CONTEXTS = (None, "state", "alloc", "all")


class DeviceMemory:
    """Of all devices."""

    def __init__(self, num_devices: int, total_bytes: int, backend: str) -> None:
        self.backend, self.total_bytes = backend, total_bytes
        self.recordings = [_Recording(AllocatorSettings(), capacity=total_bytes) for _ in range(num_devices)]
        self.fractions = [1.0] * num_devices
        self.history: str | None = None
        self.max_entries, self.skipped = sys.maxsize, frozenset[str]()
        self.rejects_beforehand = False
        """As `throw_on_cudamalloc_oom:True` with a `per_process_memory_fraction` has it."""
        self.num_rejected = [0] * num_devices
        self.observers: list[Callable[..., None]] = []
        self._stacks: dict[tuple[int, int], list[dict[str, Any]] | None] = {}
        """Of each block in use, by device and address, where it was asked for if the history was on then."""
        self._blocks: dict[int, Block] = {}
        self._given_back: deque[tuple[int, Block]] = deque()
        """Blocks to be freed, each with its device: storages go in any thread, and while one is being served."""
        self._serving = threading.Lock()

    def serve(self, key: int, num_bytes: int, device: int) -> None:
        """Memory for the storage of this key."""
        with self._serving:
            self._free()
            self._serve(key, num_bytes, device)

    def give_back(self, key: int, device: int) -> None:
        """That of a storage that is no more."""
        block = self._blocks.pop(key, None)
        if block is not None:
            self._given_back.append((device, block))
            if self._serving.acquire(blocking=False):
                try:
                    self._free()
                finally:
                    self._serving.release()

    def address_of(self, key: int) -> int | None:
        """Where a storage lies, None if on no device."""
        block = self._blocks.get(key)
        return None if block is None else block.address

    def limit(self, fraction: float, device: int) -> None:
        """As `torch.cuda.set_per_process_memory_fraction`."""
        assert not self.recordings[device].entries, "a limit comes before the first request"
        self.fractions[device] = fraction
        self.recordings[device] = _Recording(AllocatorSettings(), capacity=int(fraction * self.total_bytes))

    def empty_cache(self) -> None:
        """Of all devices."""
        for recording in self.recordings:
            recording.empty_cache()

    def record_history(
        self,
        enabled: str | None,
        context: str | None,
        stacks: str,
        max_entries: int,
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        skip_actions: Sequence[str] = (),
        record_pinned_host_memory: bool = False,
        record_cuda: bool = True,
    ) -> None:
        """Turning it off clears it; the blocks in use keep their stacks until they are freed."""
        for option, known in ((enabled, (None, "state", "all")), (context, CONTEXTS), (stacks, ("python", "all"))):
            if option not in known:
                raise RuntimeError(f"expected one of {known}, not {option!r}")
        if clear_history:
            self._clear_history()
        self.history, self.skipped = enabled, frozenset(skip_actions)
        self.max_entries = max_entries if enabled == "all" else 1
        for recording in self.recordings:
            self._keep_history(recording)

    def stats(self, device: int) -> dict[str, Any]:
        """As `torch._C._cuda_memoryStats` gives them."""
        if self.backend != "native":
            raise RuntimeError(f"{self.backend} does not yet support getDeviceStats")
        return self.recordings[device].stats() | {"num_oom_rejections": self.num_rejected[device]}

    def reset_peaks(self, device: int) -> None:
        """Let the highest values be the present ones."""
        for counts in self.recordings[device].counts.values():
            for count in counts.values():
                count.peak = count.current

    def reset_accumulated(self, device: int) -> None:
        """Count from now on."""
        for counts in self.recordings[device].counts.values():
            for count in counts.values():
                count.allocated = count.freed = 0

    def snapshot(self) -> dict[str, Any]:
        """As `torch.cuda.memory._snapshot` gives it, of all devices."""
        taken = [recording.snapshot() for recording in self.recordings]
        for device, one in enumerate(taken):
            (trace,) = one.device_traces
            one.device_traces = [[entry for entry in trace if self.history and entry.action not in self.skipped]]
            for block in (block for segment in one.segments for block in segment.blocks if block.is_active):
                block.frames = self._stacks.get((device, block.address or 0))
        whole = taken[0]
        for device, one in enumerate(taken[1:], start=1):
            for segment in one.segments:
                segment.device = device
            whole.segments += one.segments
            whole.device_traces += one.device_traces
        plain: dict[str, Any] = msgspec.to_builtins(whole, builtin_types=(tuple,))
        return plain

    def _serve(self, key: int, num_bytes: int, device: int) -> None:
        recording = self.recordings[device]
        recording._frames = _python_stack() if self.history else None
        block = recording.attempt(num_bytes)
        if block is None and self.rejects_beforehand:
            del recording.entries[-1]
            self.num_rejected[device] += 1
            raise torch.OutOfMemoryError("CUDA out of memory.")  # its wording is not known to us
        self._keep_history(recording)
        if block is None:
            recording.num_ooms += 1
            allocator = recording.allocator
            free = self.total_bytes - allocator.reserved
            # Both tell what the driver was asked for, not what the tensor needs.
            asked = segment_bytes(rounded_bytes(num_bytes, allocator.settings), allocator.settings)
            for observe in self.observers:
                observe(device, asked, self.total_bytes, free)
            wanted, total, left = (amount / MIB for amount in (asked, self.total_bytes, free))
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {wanted:.2f} MiB. GPU {device} has a total capacity of "
                f"{total / 1024:.2f} GiB of which {left:.2f} MiB is free."
            )
        self._blocks[key] = block
        self._stacks[device, block.address] = recording._frames
        recording.count_block(block, 1)

    def _free(self) -> None:
        while self._given_back:
            device, block = self._given_back.popleft()
            recording = self.recordings[device]
            recording._frames = _python_stack() if self.history else None
            del self._stacks[device, block.address]
            recording.count_block(block, -1)
            recording.free(block)
            self._keep_history(recording)

    def _clear_history(self) -> None:
        for recording in self.recordings:
            recording.entries.clear()

    def _keep_history(self, recording: Recording) -> None:
        """Only while it is on, and so many entries as it may have."""
        del recording.entries[: -self.max_entries if self.history else None]


@dataclass(slots=True)
class Count:
    """One number of the allocator's statistics, by the names that torch gives these."""

    current: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0

    def add(self, amount: int) -> None:
        """A negative one was freed."""
        self.current += amount
        self.peak = max(self.peak, self.current)
        self.allocated += max(amount, 0)
        self.freed += max(-amount, 0)


class _Recording(Recording):
    """Tells also when, and counts as torch does."""

    def __init__(self, settings: AllocatorSettings, *, capacity: int) -> None:
        super().__init__(settings, capacity=capacity)
        self.counts = {name: {pool: Count() for pool in POOLS} for name in COUNTED}
        self.num_ooms = 0

    def count_block(self, block: Block, sign: int) -> None:
        """One that is handed out, or with a negative sign comes back."""
        of_block = {"allocation": 1, "active": 1, "requested_bytes": block.requested}
        of_block |= {"allocated_bytes": block.size, "active_bytes": block.size}
        for name, amount in of_block.items():
            self._add(name, sign * amount, is_small=block.pool.is_small)

    def stats(self) -> dict[str, Any]:
        """Of one device, as a nested dictionary."""
        allocator, splits = self.allocator, _splits(self.allocator.free_blocks)
        counted: dict[str, Any] = {
            name: {pool: asdict(count) for pool, count in pools.items()}
            for name, pools in (self.counts | splits).items()
        }
        return counted | {
            "oversize_allocations": asdict(Count()),
            "oversize_segments": asdict(Count()),
            "num_alloc_retries": allocator.calls.num_retries,
            "num_ooms": self.num_ooms,
            "num_sync_all_streams": 0,
            "num_device_alloc": allocator.calls.num_taken,
            "num_device_free": allocator.calls.num_returned,
            "max_split_size": -1 if allocator.settings.max_split_bytes is None else allocator.settings.max_split_bytes,
            "reserved_bytes_by_private_pools": {},
        }

    def _add(self, name: str, amount: int, *, is_small: bool) -> None:
        for pool in ("all", "small_pool" if is_small else "large_pool"):
            self.counts[name][pool].add(amount)

    def _note(self, action: str, address: int, size: int, block: Block | None = None) -> None:
        super()._note(action, address, size, block)
        self.entries[-1].time_us = time.time_ns() // 1000
        if action.startswith("segment_"):
            sign = 1 if action in ("segment_alloc", "segment_map") else -1
            is_small = size <= SMALL_SEGMENT_BYTES
            self._add("segment", sign, is_small=is_small)
            self._add("reserved_bytes", sign * size, is_small=is_small)


def _splits(free: Iterable[Block]) -> dict[str, dict[str, Count]]:
    """What is free in segments that are partly in use; their history is not kept."""
    found = {name: {pool: Count() for pool in POOLS} for name in ("inactive_split", "inactive_split_bytes")}
    for block in free:
        if not block.is_whole_range:
            for pool in ("all", "small_pool" if block.pool.is_small else "large_pool"):
                found["inactive_split"][pool].add(1)
                found["inactive_split_bytes"][pool].add(block.size)
    return found


def _python_stack() -> list[dict[str, Any]]:
    """Innermost first, as the allocator's history has it, without this simulation's own frames."""
    frames: list[dict[str, Any]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename not in OWN_FILES:
            frames.append(_frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return frames


@functools.cache
def _frame(filename: str, line: int, name: str) -> dict[str, Any]:
    """One for all events, as in torch's snapshots."""
    return {"filename": filename, "line": line, "name": name}
