"""A CUDA device for a machine that has none: tensors stay on the CPU, and all that asks for a device is answered here.

Operators are seen by a dispatch mode, which keeps of each storage on which device it would lie: what is made of it
lies there, too. They are computed at once, while the device's own time passes in queues (`timeline`); memory is served
by our own model of the allocator; a backward pass runs in a thread of its own that Python does not list, as autograd's
engine has them. Each of these is documented behaviour of torch, and checked against a real device by tests/gpu.

Not simulated: kernels that run at once on several streams of a device, autocast's types, peer access, and memory that
libraries take for themselves. In a forked process, which may not use CUDA, what it was given lies on the CPU.
"""

import contextlib
import importlib
import os
import sys
import threading
import time
import traceback
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode, _push_mode
from torch.utils._pytree import tree_map

from efprof.recorder.session import sites
from efprof.units import GIB
from tests.simulated_cuda.engine import Engine
from tests.simulated_cuda.graphs import make_graph_class
from tests.simulated_cuda.memory import OWN_FILES, DeviceMemory
from tests.simulated_cuda.timeline import NOT_PERMITTED, Stream, device_class, event_class, stream_class, until

CPU = torch.device("cpu")
DEVICE, IS_CPU, IS_META = (vars(torch._C.TensorBase)[name].__get__ for name in ("device", "is_cpu", "is_meta"))
DISPATCHERS = tuple(torch.__file__.replace("__init__.py", name) for name in ("_dynamo", "_compile", "_ops"))
"""Through these torch calls a dispatch mode."""
BETWEEN = ("collectors/waiting_calls.py", "collectors/device_data.py")
"""What the program asks for passes through these of the recorder's, which ask for nothing themselves."""
GARBAGE = -7.0
"""What is in memory that nothing has been written to yet."""
KERNEL_NS = 2_000
"""How long any kernel takes."""
WAITING = frozenset({"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal"})
"""Operators whose results the host has to wait for."""
FACTORIES = (
    "arange", "as_tensor", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "tensor",
    "tril_indices", "zeros",
)  # fmt: skip


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
        self._thread = threading.local()
        self._backing = CPU if has_values else torch.device("meta")
        self._makes_all_on, self._process = makes_all_on, os.getpid()
        self.memory = DeviceMemory(num_devices, total_bytes, backend)
        self.version = cuda
        self.current = 0
        """The current device."""
        self.is_initialized = False
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
        self.tape: list[tuple[Any, Any, Any, Any]] = []
        self._streams = [Stream(index) for index in range(num_devices)]
        self._default = list(self._streams)
        self._homes: dict[int, int] = {}
        """The device of each storage that lies on one."""
        self._made_at_ns: dict[int, int] = {}
        """When what was computed last of each such storage is done: a stream that waits for no other may be early."""
        self._pinned: set[int] = set()
        self._on_the_way: list[tuple[int, torch.Tensor, torch.Tensor]] = []
        """Copies to the host: when each arrives, where, and what."""
        self._lazy: list[Callable[[], None]] = []

    # What tests ask and say.

    def launch(self, milliseconds: float, device: int | None = None) -> None:
        """Give the current stream of a device a kernel of this length."""
        self._streams[self.current if device is None else device].give(milliseconds * 1e6)

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """Where a tensor lies, as `tensor.device` says it here."""
        home = None if getattr(self._thread, "is_computing", False) else self._home(tensor)
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

    def note_wait(self, name: str) -> None:
        """The host waits."""
        self.refuse_in_capture()
        self.waits.append((name, [frame.filename for frame in reversed(traceback.extract_stack(limit=40))]))

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

    def current_stream(self, device: Any = None) -> Stream:
        """The current stream of a device."""
        return self._streams[self.index_of(device)]

    # The mode.

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """To keep it from the compiler would take the import of that, a second and a half."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = dict(kwargs or {})
        name = func._schema.name
        tensors = list(_tensors_in((*args, *kwargs.values())))
        homes = {self._home(tensor) for tensor in tensors} - {None}
        if name == "aten::copy_":
            return self._copy(*args, **kwargs)
        if len(homes) > 1 and name != "aten::_to_copy":
            found = " and ".join(f"cuda:{home}" for home in sorted(homes))  # type: ignore[type-var]
            raise RuntimeError(f"Expected all tensors to be on the same device, but found at least two, {found}!")
        home = next(iter(homes), None)
        is_early = home is not None and self._is_early(tensors, home)
        if name in WAITING:
            self._wait_for(name, home)
        is_pinned = kwargs.pop("pin_memory", False) or name == "aten::_pin_memory"
        if is_pinned:
            self.refuse_in_capture()
        wanted = None if kwargs.get("device") is None else torch.device(kwargs["device"])
        if wanted is not None and wanted.type in ("cpu", "cuda"):
            kwargs["device"] = CPU if wanted.type == "cpu" else self._backing
            there = self.index_of(wanted) if wanted.type == "cuda" else None
            if name == "aten::_to_copy" and home is not None:
                if there is not None:
                    self._streams[there].wait_stream(self._streams[home])
                elif not kwargs.get("non_blocking"):
                    self._wait_for("copy to the host", home)
            home = there
        if self._backing != CPU and (home is None or name in WAITING):
            args = tree_map(_readable, args)
        with self._as_they_are():
            result = args[0].clone() if name == "aten::_pin_memory" else func(*args, **kwargs)
        made = list(_tensors_in((result,)))
        for tensor in made:
            self._put(tensor, home, is_pinned=bool(is_pinned))
        if is_early and not _is_view(func):
            result = tree_map(_garbage_like, result)
        if home is not None and not _is_view(func):
            self.note_call("kernel")
            done_ns = self._streams[home].give(self.kernel_ns)
            done_ns = max(done_ns, *(self._made_ns(one) for one in tensors))
            self._made_at_ns |= {one.untyped_storage()._cdata: done_ns for one in made if self._home(one) is not None}
            if self.capturing is not None:
                self.tape.append((func, args, kwargs, result))
        return result

    def _copy(self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        there, here = self._home(target), self._home(source)
        home = there if here is None else here
        if home is None:
            return target.copy_(source)
        is_early = self._is_early((source,), home)
        with self._as_they_are():
            value = (_readable(source) if there is None else source).clone()
        value = _garbage_like(value) if is_early else value
        done_ns = self._streams[home].give(self.kernel_ns)
        if there is not None:
            self._streams[there].wait_stream(self._streams[home])
            self._made_at_ns[target.untyped_storage()._cdata] = max(done_ns, self._made_ns(source))
            if self.capturing is not None:
                self.tape.append((torch.ops.aten.copy_.default, (target, source), {}, target))
        elif non_blocking and target.untyped_storage()._cdata in self._pinned:
            self.note_call("copy to the host")
            target.fill_(GARBAGE)
            self._on_the_way.append((done_ns, target, value))
            return target
        else:
            self._wait_for("copy to the host", home)
        return target.copy_(value)

    @contextlib.contextmanager
    def _as_they_are(self) -> Iterator[None]:
        """What torch computes shapes with, in Python, asks tensors for their device: that is to be none of these."""
        self._thread.is_computing = True
        try:
            yield
        finally:
            self._thread.is_computing = False

    def _is_early(self, inputs: Iterable[torch.Tensor], home: int) -> bool:
        """Whether the current stream comes to use them before another one has made them."""
        ready_ns = max(self._streams[home].free_at_ns, time.perf_counter_ns())
        return any(self._made_ns(one) > ready_ns for one in inputs)

    def _wait_for(self, name: str, home: int | None) -> None:
        if home is not None:
            self.note_wait(name)
            until(self._streams[home].free_at_ns)
        self.deliver()

    def deliver(self) -> None:
        """Copies whose time has come reach the host."""
        now = time.perf_counter_ns()
        for arrives_ns, target, value in self._on_the_way:
            if arrives_ns <= now:
                target.detach().copy_(value)
        self._on_the_way = [one for one in self._on_the_way if one[0] > now]

    def _home(self, tensor: torch.Tensor) -> int | None:
        if os.getpid() != self._process:
            return None
        try:
            return self._homes.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):  # it has no storage
            return None

    def _made_ns(self, tensor: torch.Tensor) -> int:
        return 0 if self._home(tensor) is None else self._made_at_ns.get(tensor.untyped_storage()._cdata, 0)

    def _put(self, tensor: torch.Tensor, home: int | None, *, is_pinned: bool) -> None:
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return
        key = storage._cdata
        if key in self._homes or (home is None and not is_pinned) or storage.device not in (CPU, self._backing):
            return
        if is_pinned:
            self._pinned.add(key)
            weakref.finalize(storage, self._pinned.discard, key)
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

    def _memory_stats(self, device: int) -> dict[str, Any]:
        self.note_call("memory_stats")
        return self.memory.stats(device)

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Free and total bytes; this makes a context."""
        index = self.index_of(device)
        self.contexts.add(index)
        total = self.memory.total_bytes
        return total - self.memory.recordings[index].allocator.reserved, total

    # In torch's place.

    def index_of(self, device: Any) -> int:
        if device is None:
            return self.current
        if isinstance(device, int):
            return device
        device = torch.device(device)
        return self.current if device.index is None else device.index

    def initialize(self) -> None:
        """The program uses CUDA for the first time."""
        if os.getpid() != self._process:
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess.")
        if not self.is_initialized:
            self.is_initialized = True
            while self._lazy:
                self._lazy.pop(0)()

    def _lazy_call(self, function: Callable[[], None], **_: Any) -> None:
        if self.is_initialized:
            function()
        else:
            self._lazy.append(function)

    def _set_device(self, device: Any) -> None:
        self.initialize()
        self.current = self.index_of(device)

    @contextlib.contextmanager
    def _on_stream(self, stream: Stream | None) -> Iterator[None]:
        if stream is None:
            yield
            return
        before, self._streams[stream.device] = self._streams[stream.device], stream
        try:
            yield
        finally:
            self._streams[stream.device] = before

    def _synchronize(self, device: Any = None) -> None:
        self.note_wait("synchronize")
        until(self.current_stream(device).free_at_ns)

    def _properties(self, device: Any = None) -> SimpleNamespace:
        return SimpleNamespace(
            name="Simulated", total_memory=self.memory.total_bytes, uuid=None, major=9, minor=0, multi_processor_count=1
        )

    def _to(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Both know where a tensor lies here: torch would do nothing for `.cpu()`, and refuse to go to a device."""

        def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if args and isinstance(args[0], torch.Tensor):
                args = (args[0].device, args[0].dtype, *args[1:])
            is_copy = kwargs.pop("copy", False)
            device, dtype, non_blocking, form = torch._C._nn._parse_to(*args, **kwargs)
            wanted = tensor.device if device is None else device
            wanted = torch.device("cuda", self.index_of(wanted)) if wanted.type == "cuda" else wanted
            if wanted.type == "cuda":
                self.initialize()
            if wanted == tensor.device and not is_copy:
                return original(tensor, dtype, memory_format=form) if dtype is not None else tensor
            return torch.ops.aten._to_copy(
                tensor, dtype=dtype, device=wanted, non_blocking=non_blocking, memory_format=form
            )

        return to

    def _made_here(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A function that makes tensors, on a device if it is told so."""

        def make(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
            if device is None and os.getpid() == self._process:  # a data worker has no default device
                modes = reversed(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]
                named = (mode.device for mode in modes if isinstance(mode, DeviceContext))  # `with torch.device(...):`
                device = next(named, self._makes_all_on)
            if device is None or (not isinstance(device, int) and torch.device(device).type != "cuda"):
                made: torch.Tensor = original(*args, device=device, **kwargs)
                return made
            self.initialize()
            tensor: torch.Tensor = original(*args, device=self._backing, **kwargs)
            self._put(tensor, self.index_of(device), is_pinned=False)
            return tensor

        return make

    @contextlib.contextmanager
    def _without_other_modes(self) -> Iterator[None]:
        """No mode of the program's sees what is done within, on the device as ever."""
        lifted = []
        while _get_current_dispatch_mode() not in (None, self):
            lifted.append(_pop_mode())
        try:
            yield
        finally:
            for mode in reversed(lifted):
                _push_mode(mode)

    def _in_threads(self, original: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
        """A mode is a thread's own; these devices are there for all."""

        def run(thread: threading.Thread) -> None:
            with self:
                original(thread)

        return run

    @contextlib.contextmanager
    def in_place(self) -> Iterator["SimulatedCuda"]:
        """Within, torch has these devices."""
        memory, optimizer = map(importlib.import_module, ("torch.cuda.memory", "torch.optim.optimizer"))
        libraries = sites._library_folders()
        to, tolist, depth = torch.Tensor.to, torch.Tensor.tolist, torch._C._len_torch_dispatch_stack
        no_dispatch = torch._C._DisableTorchDispatch

        def outside_modes() -> Any:  # torch's own, as of fake tensors, go below what lies on a device
            is_of_torch = sys._getframe(1).f_globals["__name__"].startswith("torch.")
            return no_dispatch() if is_of_torch else self._without_other_modes()

        data_ptr = torch.UntypedStorage.data_ptr

        def address(storage: torch.UntypedStorage) -> int:
            found = self.memory.address_of(storage._cdata)
            return data_ptr(storage) if found is None else found

        def waited_tolist(tensor: torch.Tensor) -> Any:
            return tolist(tensor if self._home(tensor) is None else tensor.cpu())

        replaced: list[tuple[Any, str, Any]] = [
            (torch.version, "cuda", self.version),
            (sites, "_library_folders", lambda: (*libraries, *OWN_FILES)),
            (torch._C, "_cuda_memoryStats", self._memory_stats),
            (torch._C, "_cuda_record_memory_history", lambda *_: None),
            (torch._C, "_cuda_isHistoryEnabled", lambda: self.memory.history is not None),
            (torch._C, "_cuda_attach_out_of_memory_observer", self.memory.observers.append),
            (torch._C, "_len_torch_dispatch_stack", lambda: max(0, depth() - 1)),
            (memory, "_record_memory_history", self.memory.record_history),
            (memory, "get_allocator_backend", lambda: self.memory.backend),
            (memory, "get_per_process_memory_fraction", lambda of=None: self.memory.fractions[self.index_of(of)]),
            (memory, "_snapshot", self.memory.snapshot),
            (torch.cuda, "memory_snapshot", lambda include_traces: self.memory.snapshot()["segments"]),
            (memory, "is_initialized", lambda: self.is_initialized),
            (torch._C, "_DisableTorchDispatch", outside_modes),
            (torch.autograd, "_engine_run_backward", self.engine.run),
            (optimizer, "_get_foreach_kernels_supported_devices", lambda: [] if self._backing == CPU else ["cuda"]),
            (
                optimizer,
                "_group_tensors_by_device_and_dtype",
                _grouped(optimizer._group_tensors_by_device_and_dtype),
            ),
            (torch.Tensor, "device", property(self.device_of)),
            (torch.Tensor, "is_cuda", property(lambda tensor: self._home(tensor) is not None)),
            (torch.Tensor, "is_cpu", property(lambda tensor: self._home(tensor) is None and IS_CPU(tensor))),
            (torch.Tensor, "is_meta", property(lambda tensor: self._home(tensor) is None and IS_META(tensor))),
            (torch.Tensor, "to", self._to(to)),
            (torch.Tensor, "cpu", lambda tensor, *_, **__: tensor.to(CPU)),
            (
                torch.Tensor,
                "cuda",
                lambda tensor, device=None, **_: tensor.to(torch.device("cuda", self.index_of(device))),
            ),
            (torch.UntypedStorage, "data_ptr", address),
            (torch.Tensor, "tolist", waited_tolist),
            (torch.Tensor, "record_stream", lambda *_: None),
        ]
        thread: Any = threading.Thread
        replaced.append((thread, "_bootstrap_inner", self._in_threads(thread._bootstrap_inner)))
        replaced += [(owner, "empty_cache", self.memory.empty_cache) for owner in (torch.cuda, memory)]
        replaced += [(torch, name, self._made_here(getattr(torch, name))) for name in FACTORIES]
        for name, answer in (
            ("is_available", lambda: True),
            ("is_initialized", lambda: self.is_initialized),
            ("init", self.initialize),
            ("_lazy_init", self.initialize),
            ("_lazy_call", self._lazy_call),
            ("device_count", lambda: len(self.memory.recordings)),
            ("current_device", lambda: self.current),
            ("set_device", self._set_device),
            ("device", device_class(self)),
            ("stream", self._on_stream),
            ("current_stream", self.current_stream),
            ("default_stream", lambda device=None: self._default[self.index_of(device)]),
            ("synchronize", self._synchronize),
            ("mem_get_info", self.mem_get_info),
            (
                "set_per_process_memory_fraction",
                lambda share, device=None: self.memory.limit(share, self.index_of(device)),
            ),
            ("get_device_properties", self._properties),
            ("get_device_capability", lambda *_: (9, 0)),
            ("is_current_stream_capturing", lambda: self.capturing is not None),
            ("Event", event_class(self)),
            ("Stream", stream_class(self)),
            ("CUDAGraph", make_graph_class(self)),
        ):
            replaced.append((torch.cuda, name, answer))
        with contextlib.ExitStack() as undo:
            for owner, name, new in replaced:
                undo.enter_context(mock.patch.object(owner, name, new, create=not hasattr(owner, name)))
            undo.callback(self.engine.stop)
            undo.enter_context(self)
            yield self


def _forget_in(devices: "weakref.ref[SimulatedCuda]", key: int) -> None:
    """A storage is no more; it may outlive the devices, and hold nothing of them."""
    if (cuda := devices()) is not None:
        cuda._forget(key)


def _grouped(original: Callable[..., dict[Any, Any]]) -> Callable[..., dict[Any, Any]]:
    """Optimizers group tensors in C++, which knows nothing of where they lie here; each has them on one device."""

    def group(lists: Any, with_indices: bool = False) -> dict[Any, Any]:
        found = original(lists, with_indices)
        return {(of_group[0][0][0].device, dtype): of_group for (_, dtype), of_group in found.items()}

    return group


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Of an operator's arguments or results, which are such, or lists of such."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(value)


def _is_view(operator: Any) -> bool:
    """Whether it gives another look at what it is given, for which nothing runs on a device."""
    returned = [value.alias_info for value in operator._schema.returns]
    return bool(returned) and all(alias is not None and not alias.is_write for alias in returned)


def _readable(value: Any) -> Any:
    """What the host reads of it: where only shapes are computed, zeros."""
    return torch.zeros_like(value, device=CPU) if isinstance(value, torch.Tensor) and IS_META(value) else value


def _garbage_like(value: Any) -> Any:
    """What is read where nothing has been written yet."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.fill_(GARBAGE)
    return GARBAGE if isinstance(value, float) else value


def _passes_on(file: str) -> bool:
    return file in OWN_FILES or file.startswith(DISPATCHERS) or file.endswith(BETWEEN)
