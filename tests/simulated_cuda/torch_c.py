"""What torch's own Python asks of `torch._C` where there are CUDA devices, answered for simulated ones.

All else of `torch.cuda` stays torch's own: what it checks, when it starts CUDA, and how its functions are called.
"""

# ruff: noqa: N802 - the names are torch's

import functools
import os
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.cuda.graphs
import torch.cuda.streams
from torch._utils import _LazySeedTracker

from efprof.units import KIB, MIB
from tests.simulated_cuda.graphs import graph_base
from tests.simulated_cuda.memory import DeviceMemory
from tests.simulated_cuda.timeline import CUDA_TYPE, event_base, stream_base, until

CYCLE_NS = 0.5
"""Of the clock that `torch.cuda._sleep` counts by."""


Replacement = tuple[Any, str, Any]
"""What has an attribute, its name, and what it is replaced by."""


def in_c(cuda: Any) -> Iterator[Replacement]:
    yield from ((torch._C, name, new) for name, new in (classes(cuda) | functions(cuda)).items())


def in_torch_cuda(cuda: Any) -> Iterator[Replacement]:
    """What it has from `torch._C` since it was imported, and the state that it keeps."""
    streams, graphs = load("streams"), load("graphs")
    for module in (torch.cuda, torch.cuda.streams):
        yield from ((module, name, getattr(streams, name)) for name in ("Stream", "ExternalStream", "Event"))
    for module in (torch.cuda, torch.cuda.graphs):
        yield from ((module, name, getattr(graphs, name)) for name in ("CUDAGraph", "graph"))
    c: Any = torch._C
    index = range(len(cuda.memory.recordings))
    yield torch.cuda, "_exchange_device", c._cuda_exchangeDevice
    yield torch.cuda, "_maybe_exchange_device", c._cuda_maybeExchangeDevice
    yield torch.cuda, "_is_in_bad_fork", c._cuda_isInBadFork
    yield torch.cuda, "is_current_stream_capturing", graphs.is_current_stream_capturing
    yield torch.cuda, "_cudart", runtime(cuda)
    yield torch.cuda, "_get_device_properties", {device: properties(cuda) for device in index}.__getitem__
    yield torch.cuda, "_initialized", False
    yield torch.cuda, "_cached_device_count", len(index)
    yield torch.cuda, "_queued_calls", list[Any]()
    yield torch.cuda, "_lazy_seed_tracker", _LazySeedTracker()  # type: ignore[no-untyped-call]
    yield torch.cuda, "default_generators", ()
    yield torch.backends.cuda, "is_built", lambda: True
    yield torch.version, "cuda", cuda.version


def classes(cuda: Any) -> dict[str, type]:
    """Those that torch's streams, events and graphs are made from."""
    return {"_CudaStreamBase": stream_base(cuda), "_CudaEventBase": event_base(cuda), "_CUDAGraph": graph_base(cuda)}


def load(name: str) -> types.ModuleType:
    """This module of `torch.cuda` once more, made from the classes that stand in `torch._C` now."""
    module = types.ModuleType(f"torch.cuda.{name}")
    module.__package__ = "torch.cuda"
    exec(_code(name), vars(module))
    return module


@functools.cache
def _code(name: str) -> types.CodeType:
    path = Path(torch.cuda.__file__).with_name(f"{name}.py")
    return compile(path.read_text(), str(path), "exec")


def functions(cuda: Any) -> dict[str, Callable[..., Any]]:
    """By the names that they have there."""
    memory: DeviceMemory = cuda.memory
    process, debug_mode = os.getpid(), [0]
    start: Callable[[], None] = torch.cuda.init

    def _cuda_init() -> None:
        generators: Any = tuple(torch.Generator() for _ in memory.recordings)
        torch.cuda.default_generators = generators

    def _cuda_isInBadFork() -> bool:
        return os.getpid() != process

    def _cuda_getDeviceCount() -> int:
        return len(memory.recordings)

    def _cuda_getDevice() -> int:
        return int(cuda.current)

    def _cuda_setDevice(device: int) -> None:
        start()
        if device != cuda.current:
            cuda.go_to(device)
            cuda.contexts.add(device)

    def _cuda_exchangeDevice(device: int) -> int:
        if device < 0:
            return -1
        before = cuda.current
        _cuda_setDevice(device)
        return int(before)

    def _cuda_maybeExchangeDevice(device: int) -> int:
        """It makes no context where there is none."""
        if device < 0:
            return -1
        start()
        before = cuda.current
        cuda.go_to(device)
        return int(before)

    def _cuda_hasPrimaryContext(device: int) -> bool:
        return device in cuda.contexts

    def _cuda_getCurrentStream(device: int) -> tuple[int, int, int]:
        return cuda.current_stream_id(device), device, CUDA_TYPE

    def _cuda_getCurrentRawStream(device: int) -> int:
        return int(torch.cuda.current_stream(device).cuda_stream)

    def _cuda_getDefaultStream(device: int) -> tuple[int, int, int]:
        return 0, device, CUDA_TYPE

    def _cuda_setStream(stream_id: int, device_index: int, device_type: int) -> None:
        _cuda_setDevice(device_index)
        cuda.enter_stream(device_index, stream_id)

    def _cuda_synchronize() -> None:
        cuda.note_wait("synchronize")
        cuda.contexts.add(cuda.current)
        until(max((queue.free_at_ns for queue in cuda.queues(cuda.current)), default=0))
        cuda.deliver()

    def _cuda_sleep(cycles: int) -> None:
        cuda.launch(cycles * CYCLE_NS / 1e6)

    def _cuda_set_sync_debug_mode(warn_level: int) -> None:
        debug_mode[0] = warn_level

    def _cuda_get_sync_debug_mode() -> int:
        return debug_mode[0]

    def _cuda_isCurrentStreamCapturing() -> bool:
        return cuda.capturing is not None

    def _cuda_memoryStats(device: int) -> dict[str, Any]:
        cuda.note_call("memory_stats")
        return memory.stats(device)

    def _cuda_memorySnapshot(mempool_id: tuple[int, int] | tuple[int, int, bool] | None = None) -> dict[str, Any]:
        taken = memory.snapshot()
        if mempool_id is not None and len(mempool_id) == 3 and not mempool_id[2]:
            taken["device_traces"] = [[] for _ in taken["device_traces"]]
        return taken

    def _cuda_isHistoryEnabled() -> bool:
        return memory.history is not None

    def _cuda_attach_out_of_memory_observer(observer: Callable[..., None]) -> None:
        start()
        memory.observers.append(observer)

    def _cuda_getAllocatorBackend() -> str:
        return memory.backend

    def _cuda_getMemoryFraction(device: int) -> float:
        return memory.fractions[device]

    found = {name: value for name, value in locals().items() if name.startswith("_cuda_")}
    return found | {
        "_cuda_emptyCache": memory.empty_cache,
        "_cuda_setMemoryFraction": memory.limit,
        "_cuda_record_memory_history": memory.record_history,
        "_cuda_resetPeakMemoryStats": memory.reset_peaks,
        "_cuda_resetAccumulatedMemoryStats": memory.reset_accumulated,
        "_host_emptyCache": lambda: None,
        "_graph_pool_handle": lambda: (0, id(object())),
    }


def runtime(cuda: Any) -> SimpleNamespace:
    """What is asked of `torch.cuda.cudart()`."""

    def cudaMemGetInfo(device: int) -> tuple[int, int]:
        cuda.ask("mem_get_info")
        cuda.contexts.add(device)
        total = cuda.memory.total_bytes
        return total - cuda.memory.recordings[device].allocator.reserved, total

    return SimpleNamespace(cudaMemGetInfo=cudaMemGetInfo)


def properties(cuda: Any) -> SimpleNamespace:
    """As an H100 has them; `torch.cuda.get_device_properties` gives them."""
    return SimpleNamespace(
        name="Simulated",
        major=9,
        minor=0,
        multi_processor_count=1,
        total_memory=cuda.memory.total_bytes,
        is_integrated=0,
        is_multi_gpu_board=0,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        warp_size=32,
        uuid="00000000-0000-0000-0000-000000000000",
        L2_cache_size=50 * MIB,
        clock_rate=1_980_000,
        memory_clock_rate=2_619_000,
        memory_bus_width=5120,
        shared_memory_per_block=48 * KIB,
        shared_memory_per_block_optin=227 * KIB,
        shared_memory_per_multiprocessor=228 * KIB,
        regs_per_multiprocessor=65_536,
    )
