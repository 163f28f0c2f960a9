"""A CUDA device for a machine that has none: tensors stay on the CPU, and all that asks for a device is answered here.

Operators are seen by a dispatch mode, which keeps of each storage on which device it would lie: what is made of it
lies there, too. They are computed at once, while the device's own time passes in queues (`timeline`); memory is served
by our own model of the allocator; a backward pass runs in a thread of its own that Python does not list, as autograd's
engine has them. `torch.cuda` is torch's own Python: only what it asks of C is answered here (`torch_c`).

What is taken for granted of CUDA stands in `assumptions`, one text that runs here and, by tests/gpu, on a real device.
`test_signatures` compares all that is replaced with torch's functions and stubs.

Hidden by it, as it is not simulated:

- Memory follows our own model, so nothing here can show that the model is wrong. Nothing else takes any, such as NCCL,
  cuBLAS and the context; a block that another stream still uses is free at once.
- Kernels that run at once on several streams, and how long a kernel takes: all take the same time.
- An operator's result is there when it returns. Only a stream that is too early for another one's work reads garbage.
- The host waits where an operator needs a count or a value, by the list in `operators`. Waits inside kernels of other
  libraries, for a full queue, or for `cudaMalloc` are not there.
- A tensor that lies on the host may be mixed with one on a device: torch's C++ makes such by itself here.
- Graphs: no pool of memory of their own; factories run when captured; `with stream:` does not enter a stream.
- DTensor, NCCL, FSDP, `torch.accelerator`, Triton, CUPTI and its traces, autocast's types, peer access, sparse tensors.
- A device that breaks down (`break_down`) fails in each later call; the kernel at fault is not told late.

In a forked process, which may not use CUDA, what it was given lies on the CPU.
"""

import contextlib
import os
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from efprof.units import GIB
from tests.simulated_cuda import places, torch_c
from tests.simulated_cuda.engine import Engine
from tests.simulated_cuda.memory import OWN_FILES, DeviceMemory
from tests.simulated_cuda.operators import (
    CPU,
    DEVICE,
    GARBAGE,
    READ_BY_A_MASK,
    WRITTEN_BY_A_MASK,
    garbage_like,
    is_view,
    is_waited_for,
    readable,
    tensors_in,
    written_by,
)
from tests.simulated_cuda.timeline import NOT_PERMITTED, Queue, until

DISPATCHERS = tuple(torch.__file__.replace("__init__.py", name) for name in ("_dynamo", "_compile", "_ops"))
"""Through these torch calls a dispatch mode."""
BETWEEN = ("collectors/waiting_calls.py", "collectors/device_data.py")
"""What the program asks for passes through these of the recorder's, which ask for nothing themselves."""
KERNEL_NS = 2_000
"""How long any kernel takes."""
MEMORY_OF_A_GRADIENT = "aten::new_empty_strided"
DEBUG_ERROR = 2
"""What `torch.cuda.set_sync_debug_mode("error")` sets."""
INDEXING = READ_BY_A_MASK | WRITTEN_BY_A_MASK


class _OfThread(threading.local):
    """What each thread has of its own."""

    is_computing = False
    device = 0
    """The current one."""

    def __init__(self) -> None:
        self.streams: dict[int, int] = {}
        """The number of the current stream of each device that it is not the default stream of."""


class SimulatedCuda(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """As many devices as one likes. `with cuda.in_place():` they are there."""

    def __init__(
        self,
        num_devices: int = 1,
        *,
        total_bytes: int = 8 * GIB,
        backend: str = "native",
        cuda: str = "13.0",
        makes_all_on: int | None = None,
        has_values: bool = True,
    ) -> None:
        """On the device `makes_all_on` lies what is made without naming one, as after `torch.set_default_device`.

        Where it `has_values` not, only shapes are computed, and zeros are read: so it may have any amount of memory.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._here = _OfThread()
        self.backing = CPU if has_values else torch.device("meta")
        self.makes_all_on, self.process = makes_all_on, os.getpid()
        self.memory = DeviceMemory(num_devices, total_bytes, backend)
        self.version = cuda
        self.contexts: set[int] = set()
        """Devices on which there is a context: asking the driver or the allocator for anything makes one."""
        self.waits: list[tuple[str, list[str]]] = []
        """Calls for which the host waited, each with the files of its stack, innermost first."""
        self.calls: dict[str, int] = defaultdict(int)
        self.capturing: Any = None
        """The graph that is being captured, or something else that is true."""
        self.is_spoiled = False
        self.kernel_ns = KERNEL_NS
        self.engine = Engine(self)
        self.replaced: list[tuple[Any, str]] = []
        """What it stands for, with the names."""
        self.tape: list[tuple[Any, Any, Any, Any]] = []
        self._queues: list[dict[int, Queue]] = [defaultdict(Queue) for _ in range(num_devices)]
        """Of each device, by the streams' numbers."""
        self._error: Exception | None = None
        """What every call gets from now on."""
        self._homes: dict[int, int] = {}
        """The device of each storage that lies on one."""
        self._made_at_ns: dict[int, int] = {}
        """When what was computed last of each such storage is done: a stream that waits for no other may be early."""
        self.pinned: set[int] = set()
        self._on_the_way: list[tuple[int, torch.Tensor, torch.Tensor]] = []
        """Copies to the host: when each arrives, where, and what."""

    # What tests ask and say.

    @property
    def current(self) -> int:
        """The current device of this thread."""
        return self._here.device

    def launch(self, milliseconds: float, device: int | None = None) -> None:
        """Give the current stream of a device a kernel of this length."""
        self._queue(self.current if device is None else device).give(milliseconds * 1e6)

    def break_down(self) -> None:
        """A kernel reads where it must not: each call that gets to the device fails from now on."""
        self._error = getattr(torch, "AcceleratorError", RuntimeError)(
            "CUDA error: an illegal memory access was encountered"
        )

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """Where a tensor lies, as `tensor.device` says it here."""
        home = None if self._here.is_computing else self.home_of(tensor)
        return DEVICE(tensor) if home is None else torch.device("cuda", home)

    def waits_of(self, folder: str) -> list[str]:
        """The calls that waited, made by a function in this folder, whatever else was called in between."""
        return [name for name, files in self.waits if any(folder in file for file in files)]

    def waits_made_in(self, folder: str) -> list[str]:
        """The calls that waited since a function in this folder asked for a value, and not one that was called by it.

        What stands in the place of torch's functions, to count the program's calls, asks for none itself.
        """
        makers = ((name, next((file for file in files if not _passes_on(file)), "")) for name, files in self.waits)
        return [name for name, file in makers if folder in file]

    def note_call(self, name: str) -> None:
        """Something asks the device, and does not wait."""
        self.calls[name] += 1

    def ask(self, name: str) -> None:
        """Something asks the driver."""
        self.note_call(name)
        if self._error is not None:
            raise self._error

    def note_wait(self, name: str) -> None:
        """The host waits."""
        self.refuse_in_capture()
        self.waits.append((name, list(_files_of_stack())))
        self.ask("wait")

    def refuse_in_capture(self) -> None:
        """Something is done that is not permitted while a graph is captured, and that the capture does not survive."""
        if self.capturing is not None:
            self.is_spoiled = True
            raise RuntimeError(NOT_PERMITTED)

    @contextlib.contextmanager
    def captured_by_the_driver(self) -> Iterator[list[Any]]:
        """A capture of which no class of torch's is told, as of a library that calls the driver; what got into it."""
        self.capturing, self.is_spoiled, self.tape = "the driver", False, []
        try:
            yield self.tape
        finally:
            self.capturing, self.tape = None, []

    # What torch_c asks.

    def go_to(self, device: int) -> None:
        """Of this thread."""
        self._here.device = device

    def enter_stream(self, device: int, stream_id: int) -> None:
        """It is this thread's current one on this device."""
        self._here.streams[device] = stream_id

    def current_stream_id(self, device: int) -> int:
        """0 for the default stream."""
        return self._here.streams.get(device, 0)

    def queue_of(self, stream: Any) -> Queue:
        """That of a `torch.cuda.Stream`."""
        queue: Queue = self._queues[stream.device_index][stream.stream_id]
        return queue

    def queues(self, device: int) -> list[Queue]:
        """Those of all its streams."""
        return list(self._queues[device].values())

    def as_here(self) -> Callable[[], None]:
        """When called in another thread, that has the current device and streams of this one."""
        device, streams = self._here.device, dict(self._here.streams)

        def adopt() -> None:
            self._here.device, self._here.streams = device, dict(streams)

        return adopt

    # The mode.

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """To keep it from the compiler would take the import of that, a second and a half."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = dict(kwargs or {})
        name = func._schema.name
        tensors = list(tensors_in((*args, *kwargs.values())))
        homes = {self.home_of(tensor) for tensor in tensors} - {None}
        wanted = None if kwargs.get("device") is None else torch.device(kwargs["device"])
        if wanted is not None and wanted.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]
        if name == "aten::copy_":
            return self._copy(*args, **kwargs)
        if name == "aten::_to_copy" and wanted is not None and self._is_elsewhere(args[0], wanted):
            return self._copy_to(wanted, *args, **kwargs)
        if len(homes) > 1:
            found = " and ".join(f"cuda:{home}" for home in sorted(homes))  # type: ignore[type-var]
            raise RuntimeError(f"Expected all tensors to be on the same device, but found at least two, {found}!")
        home = next(iter(homes), None)
        if name == MEMORY_OF_A_GRADIENT and home is not None:
            wanted = torch.device("cuda", home)  # autograd's C++ names the host's, where it sees the gradient
        is_early = home is not None and self._is_early(tensors, home)
        waits = is_waited_for(name, args, kwargs)
        if waits:
            self._wait_for(name, home)
        if home is not None and name in INDEXING and any(self.home_of(index) is None for index in tensors_in(args[1])):
            self._wait_for("copy to the device", home)
        is_pinned = kwargs.pop("pin_memory", False) or name == "aten::_pin_memory"
        if is_pinned:
            self.refuse_in_capture()
        if wanted is not None and wanted.type in ("cpu", "cuda"):
            kwargs["device"] = CPU if wanted.type == "cpu" else self.backing
            home = self.index_of(wanted) if wanted.type == "cuda" else None
        if self.backing != CPU and (home is None or waits):
            args = tree_map(readable, args)
        is_run = home is not None and not is_view(func)
        is_captured = is_run and self.capturing is not None
        before = [(one, one.clone()) for one in written_by(func, args, kwargs)] if is_captured else []
        with self._as_they_are():
            result = args[0].clone() if name == "aten::_pin_memory" else func(*args, **kwargs)
            for one, value in before:
                one.copy_(value)  # what is captured does not run yet
        made = list(tensors_in((result,)))
        for tensor in made:
            self.put(tensor, home, is_pinned=bool(is_pinned))
        if is_early and is_run:
            result = tree_map(garbage_like, result)
        if is_captured:
            kept = {id(one) for one, _ in before}
            result = tree_map(lambda value: value if id(value) in kept else garbage_like(value), result)
        if is_run:
            self._run(home, tensors, made)
        if is_captured:
            self.tape.append((func, args, kwargs, result))
        return result

    def _run(self, home: Any, inputs: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        """A kernel on the current stream, begun when its inputs are there."""
        self.ask("kernel")
        if self.capturing is not None:
            return
        done_ns = self._queue(home).give(self.kernel_ns)
        done_ns = max(done_ns, *(self._made_ns(one) for one in inputs))
        self._made_at_ns |= {one.untyped_storage()._cdata: done_ns for one in made if self.home_of(one) is not None}

    def _is_elsewhere(self, tensor: torch.Tensor, wanted: torch.device) -> bool:
        home = self.home_of(tensor)
        return home != self.index_of(wanted) if wanted.type == "cuda" else wanted.type == "cpu" and home is not None

    def _copy_to(self, wanted: torch.device, source: torch.Tensor, non_blocking: bool = False, **kwargs: Any) -> Any:
        """To another device, or from or to the host; there without a wait into pinned memory, as torch has it."""
        is_to_host = wanted.type == "cpu"
        kwargs["device"] = CPU if is_to_host else self.backing
        with self._as_they_are():
            target = torch.empty_like(source, **{key: value for key, value in kwargs.items() if value is not None})
        self.put(target, None if is_to_host else self.index_of(wanted), is_pinned=is_to_host and non_blocking)
        return self._copy(target, source, non_blocking)

    def _copy(self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        there, here = self.home_of(target), self.home_of(source)
        home = there if here is None else here
        if home is None or not target.numel():
            return target.copy_(source)
        if not non_blocking and None in (there, here):
            self._wait_for("copy to the host" if there is None else "copy to the device", home)
        self.ask("copy")
        is_early = self._is_early((source,), home)
        with self._as_they_are():
            value = (readable(source) if there is None else source).clone()
        value = garbage_like(value) if is_early else value
        if self.capturing is not None:
            self.tape.append((torch.ops.aten.copy_.default, (target, source, True), {}, target))
            return target
        done_ns = self._queue(home).give(self.kernel_ns)
        if there is not None:
            self._queue(there).wait_until(self._queue(home).free_at_ns)
            self._made_at_ns[target.untyped_storage()._cdata] = max(done_ns, self._made_ns(source))
        elif non_blocking and target.untyped_storage()._cdata in self.pinned:
            self.note_call("copy to the host")
            target.fill_(GARBAGE)
            self._on_the_way.append((done_ns, target, value))
            return target
        elif non_blocking:
            self._wait_for("copy to memory that is not pinned", home)
        return target.copy_(value)

    @contextlib.contextmanager
    def _as_they_are(self) -> Iterator[None]:
        """What torch computes shapes with, in Python, asks tensors for their device: that is to be none of these."""
        self._here.is_computing = True
        try:
            yield
        finally:
            self._here.is_computing = False

    def _is_early(self, inputs: Iterable[torch.Tensor], home: int) -> bool:
        """Whether the current stream comes to use them before another one has made them."""
        ready_ns = max(self._queue(home).free_at_ns, time.perf_counter_ns())
        return any(self._made_ns(one) > ready_ns for one in inputs)

    def _wait_for(self, name: str, home: int | None) -> None:
        if home is not None:
            self.note_wait(name)
            if torch._C._cuda_get_sync_debug_mode() == DEBUG_ERROR:
                raise RuntimeError("called a synchronizing CUDA operation")
            until(self._queue(home).free_at_ns)
        self.deliver()

    def deliver(self) -> None:
        """Copies whose time has come reach the host."""
        now = time.perf_counter_ns()
        for arrives_ns, target, value in self._on_the_way:
            if arrives_ns <= now:
                target.detach().copy_(value)
        self._on_the_way = [one for one in self._on_the_way if one[0] > now]

    def home_of(self, tensor: torch.Tensor) -> int | None:
        if os.getpid() != self.process:
            return None
        try:
            return self._homes.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):  # it has no storage
            return None

    def _made_ns(self, tensor: torch.Tensor) -> int:
        return 0 if self.home_of(tensor) is None else self._made_at_ns.get(tensor.untyped_storage()._cdata, 0)

    def put(self, tensor: torch.Tensor, home: int | None, *, is_pinned: bool) -> None:
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return
        key = storage._cdata
        if key in self._homes or (home is None and not is_pinned) or storage.device not in (CPU, self.backing):
            return
        if is_pinned:
            self.pinned.add(key)
            weakref.finalize(storage, self.pinned.discard, key)
            self.note_call("cudaHostAlloc")
        if home is not None:
            self._homes[key] = home
            weakref.finalize(storage, _forget_in, weakref.ref(self), key)
            self._allocate(key, storage.nbytes(), home)

    # Memory.

    def _allocate(self, key: int, num_bytes: int, home: int) -> None:
        self.contexts.add(home)
        if num_bytes:
            self.memory.serve(key, num_bytes, home)

    def _forget(self, key: int) -> None:
        self._made_at_ns.pop(key, None)
        if (home := self._homes.pop(key, None)) is not None:
            self.memory.give_back(key, home)

    # In torch's place.

    def index_of(self, device: Any) -> int:
        """The current one where none is named."""
        if isinstance(device, int):
            return device
        index = None if device is None else torch.device(device).index
        return self.current if index is None else index

    def _queue(self, device: int) -> Queue:
        """That of the current stream of a device."""
        return self._queues[device][self.current_stream_id(device)]

    @contextlib.contextmanager
    def in_place(self) -> Iterator["SimulatedCuda"]:
        """Within, torch has these devices."""
        with contextlib.ExitStack() as undo:
            self.replaced = []
            for part in (torch_c.in_c, places.in_torch, torch_c.in_torch_cuda):
                for owner, name, new in part(self):
                    self.replaced.append((owner, name))
                    undo.enter_context(mock.patch.object(owner, name, new, create=not hasattr(owner, name)))
            undo.callback(self.engine.stop)
            undo.enter_context(self)
            yield self


def _forget_in(devices: "weakref.ref[SimulatedCuda]", key: int) -> None:
    """A storage is no more; it may outlive the devices, and hold nothing of them."""
    if (cuda := devices()) is not None:
        cuda._forget(key)


def _files_of_stack() -> Iterator[str]:
    """Innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def _passes_on(file: str) -> bool:
    return file in OWN_FILES or file.startswith(DISPATCHERS) or file.endswith(BETWEEN)
