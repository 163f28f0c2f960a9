"""What of torch's Python has to know where a tensor lies: all of them are the host's, and some lie on a device."""

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode, _push_mode

from efprof.recorder.session import sites
from tests.simulated_cuda.memory import OWN_FILES
from tests.simulated_cuda.operators import CPU, IS_CPU, IS_META
from tests.simulated_cuda.torch_c import Replacement

FROM_THE_HOST = (torch.tensor, torch.as_tensor)
FACTORIES = (
    "arange", "as_tensor", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "tensor",
    "tril_indices", "zeros",
)  # fmt: skip


def in_torch(cuda: Any) -> Iterator[Replacement]:
    """What knows where a tensor lies, and what runs backward passes."""
    optimizer: Any = importlib.import_module("torch.optim.optimizer")
    thread: Any = threading.Thread
    libraries = sites._library_folders()
    to, tolist, depth = torch.Tensor.to, torch.Tensor.tolist, torch._C._len_torch_dispatch_stack
    no_dispatch = torch._C._DisableTorchDispatch

    def outside_modes() -> Any:  # torch's own, as of fake tensors, go below what lies on a device
        is_of_torch = sys._getframe(1).f_globals["__name__"].startswith("torch.")
        return no_dispatch() if is_of_torch else _without_other_modes(cuda)

    data_ptr = torch.UntypedStorage.data_ptr

    def address(storage: torch.UntypedStorage) -> int:
        found = cuda.memory.address_of(storage._cdata)
        return data_ptr(storage) if found is None else found

    def waited_tolist(tensor: torch.Tensor) -> Any:
        return tolist(tensor if cuda.home_of(tensor) is None else tensor.cpu())

    def cpu(tensor: torch.Tensor, memory_format: Any = torch.preserve_format) -> torch.Tensor:
        return tensor.to(CPU, memory_format=memory_format)

    def to_device(
        tensor: torch.Tensor,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: Any = torch.preserve_format,
    ) -> torch.Tensor:
        there = torch.device("cuda", cuda.index_of(device))
        return tensor.to(there, non_blocking=non_blocking, memory_format=memory_format)

    yield sites, "_library_folders", lambda: (*libraries, *OWN_FILES)
    yield torch._C, "_len_torch_dispatch_stack", lambda: max(0, depth() - 1)
    yield torch._C, "_DisableTorchDispatch", outside_modes
    yield torch.autograd, "_engine_run_backward", cuda.engine.run
    yield optimizer, "_get_foreach_kernels_supported_devices", lambda: [] if cuda.backing == CPU else ["cuda"]
    if hasattr(torch.optim.Optimizer, "_accelerator_graph_capture_health_check"):  # torch 2.15 asks C++ for a stream
        yield torch.optim.Optimizer, "_accelerator_graph_capture_health_check", lambda self: None
    grouped = _grouped(optimizer._group_tensors_by_device_and_dtype)
    yield optimizer, "_group_tensors_by_device_and_dtype", grouped
    yield torch.Tensor, "device", property(cuda.device_of)
    yield torch.Tensor, "is_cuda", property(lambda tensor: cuda.home_of(tensor) is not None)
    yield torch.Tensor, "is_cpu", property(lambda tensor: cuda.home_of(tensor) is None and IS_CPU(tensor))
    yield torch.Tensor, "is_meta", property(lambda tensor: cuda.home_of(tensor) is None and IS_META(tensor))
    yield torch.Tensor, "get_device", lambda tensor: -1 if tensor.device.index is None else tensor.device.index
    yield torch.Tensor, "to", _to(cuda, to)
    yield torch.Tensor, "cpu", cpu
    yield torch.Tensor, "cuda", to_device
    yield torch.UntypedStorage, "data_ptr", address
    yield torch.Tensor, "tolist", waited_tolist
    yield torch.Tensor, "is_pinned", lambda tensor, device=None: tensor.untyped_storage()._cdata in cuda.pinned
    yield torch.Tensor, "record_stream", lambda tensor, s: None
    yield thread, "_bootstrap_inner", _in_threads(cuda, thread._bootstrap_inner)
    yield from ((torch, name, _made_here(cuda, getattr(torch, name))) for name in FACTORIES)


def _to(cuda: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """Both know where a tensor lies here: torch would do nothing for `.cpu()`, and refuse to go to a device."""

    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        is_copy = kwargs.pop("copy", False)
        device, dtype, non_blocking, form = torch._C._nn._parse_to(*args, **kwargs)
        wanted = tensor.device if device is None else device
        wanted = torch.device("cuda", cuda.index_of(wanted)) if wanted.type == "cuda" else wanted
        if wanted == tensor.device and not is_copy:
            return original(tensor, dtype, memory_format=form) if dtype is not None else tensor
        return torch.ops.aten._to_copy(
            tensor, dtype=dtype, device=wanted, non_blocking=non_blocking, memory_format=form
        )

    return to


def _made_here(cuda: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes tensors, on a device if it is told so."""

    def make(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None and os.getpid() == cuda.process:  # a data worker has no default device
            modes = reversed(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]
            named = (mode.device for mode in modes if isinstance(mode, DeviceContext))  # `with torch.device(...):`
            device = next(named, cuda.makes_all_on)
        if device is None or (not isinstance(device, int) and torch.device(device).type != "cuda"):
            return original(*args, device=device, **kwargs)
        torch.cuda.init()  # type: ignore[no-untyped-call]
        if original in FROM_THE_HOST:
            return _on(torch.device("cuda", cuda.index_of(device)), original, *args, **kwargs)
        tensor = original(*args, device=cuda.backing, **kwargs)
        cuda.put(tensor, cuda.index_of(device), is_pinned=False)
        return tensor

    return make


def _on(device: torch.device, make: Callable[..., Any], *args: Any, requires_grad: bool = False, **kwargs: Any) -> Any:
    """A tensor with values of the host's, which are copied."""
    return make(*args, device=CPU, **kwargs).to(device).requires_grad_(requires_grad)


@contextlib.contextmanager
def _without_other_modes(cuda: Any) -> Iterator[None]:
    """No mode of the program's sees what is done within, on the device as ever."""
    lifted = []
    while _get_current_dispatch_mode() not in (None, cuda):
        lifted.append(_pop_mode())
    try:
        yield
    finally:
        for mode in reversed(lifted):
            _push_mode(mode)


def _in_threads(cuda: Any, original: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """A mode is a thread's own; these devices are there for all."""

    def run(thread: threading.Thread) -> None:
        with cuda:
            original(thread)

    return run


def _grouped(original: Callable[..., dict[Any, Any]]) -> Callable[..., dict[Any, Any]]:
    """Optimizers group tensors in C++, which knows nothing of where they lie here; each has them on one device."""

    def group(tensorlistlist: Any, with_indices: bool = False) -> dict[Any, Any]:
        found = original(tensorlistlist, with_indices)
        return {(of_group[0][0][0].device, dtype): of_group for (_, dtype), of_group in found.items()}

    return group
