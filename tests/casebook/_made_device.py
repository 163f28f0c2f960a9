"""Runs a case without its device: torch computes shapes only, and our model of the allocator serves what tensors ask.

Each new storage on torch's device "meta" is a request, made with the stack of Python that asked for it, and given
back when the storage goes. A backward pass has no stack, as in a thread of autograd's. What is written is a run folder
as the recorder would leave it after a window over all steps; how long things take is made up, and memory that
libraries take for themselves is missing.
"""

import contextlib
import importlib
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch.nn.modules import module
from torch.optim import optimizer
from torch.utils import _python_dispatch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from efprof.artifacts.events import Event, LoaderBuilt
from efprof.artifacts.snapshot import Snapshot
from efprof.artifacts.steps import BoundaryMemory, SiteCalls, StepRecord
from efprof.facts.allocator import caching_allocator
from efprof.facts.allocator.blocks import Block
from efprof.facts.allocator.settings import AllocatorSettings
from efprof.facts.run_limits import FRACTION_SETTING
from efprof.recorder.collectors import device_data
from efprof.recorder.options import DEFAULT_MEMORY_STEPS
from tests.builders import GPU, START_NS, loader_built, make_step, write_run
from tests.casebook._cases import Case
from tests.facts.allocator import recording

Frame = dict[str, str | int]
_Shape = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]

EVENT_US = 5
"""From one event to the next."""
OURS = frozenset(
    file for file in (__file__, *(one.__file__ for one in (recording, caching_allocator, _python_dispatch))) if file
)
"""Files whose frames no program has."""
EMPTY_CACHE: Frame = {"filename": "/site-packages/torch/cuda/memory.py", "line": 224, "name": "empty_cache"}


def made_run(case: Case, folder: Path, *, is_healthy: bool, num_steps: int) -> None:
    """Train the case for so many steps on a made device, and write what would have been recorded there."""
    device = _MadeDevice(case, num_steps)
    with device.in_place(), contextlib.suppress(_EnoughSteps):
        device.module.train(is_healthy)
    write_run(
        folder,
        steps=device.steps,
        events=[*device.loaders, *device.events],
        sources={device.file: case.path.read_text()},
        snapshots=[device.snapshot],
        devices=[GPU],
        memory_source="CUDA caching allocator",
        working_folder=str(Path.cwd()),
        settings=device.settings,
    )


class _EnoughSteps(Exception):
    """Ends a training that would go on."""


class _Recording(recording.Recording):
    """Asks at each event who wants it, and when."""

    def __init__(self, frames: Callable[[], list[Frame] | None], capacity: int | None = None) -> None:
        super().__init__(AllocatorSettings(), capacity=capacity)
        self._frames_now = frames

    @property
    def now_us(self) -> int:
        return START_NS // 1000 + EVENT_US * len(self.entries)

    def empty_cache(self) -> None:
        self.allocator.release_cached()

    def _note(self, action: str, address: int, size: int, block: Block | None = None) -> None:
        time_us = self.now_us
        super()._note(action, address, size, block)
        self.entries[-1].frames, self.entries[-1].time_us = self._frames_now(), time_us


class _MadeDevice(_python_dispatch.TorchDispatchMode):
    """What the case does to a device, noted in `recording`, `steps` and `loaders`."""

    def __init__(self, case: Case, num_steps: int) -> None:
        super().__init__()
        self.module = importlib.import_module(f"tests.casebook.{case.name}")
        self.file = str(case.path.relative_to(Path.cwd()))
        self.recording = _Recording(self._frames)
        self.steps: list[StepRecord] = []
        self.loaders: list[LoaderBuilt] = []
        self.settings: dict[str, str] = {}
        self.snapshot: Snapshot
        self._num_steps = num_steps
        self._num_recorded = min(num_steps, _end_of_window(case))
        self._shapes = _Shapes()
        self._blocks: dict[int, Block] = {}
        self._known_frames: dict[tuple[str, int, str], Frame] = {}
        self._is_emptying = False
        self._watch = device_data.DataWatch("meta", self._site, self._address, lambda function: function)
        self.events: list[Event] = []
        self._start_step()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, and find memory for what it made."""
        del types
        result = self._shapes.result_of(func, args, kwargs or {})
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                self._allocate(tensor.untyped_storage())
        return result

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within, the case's device is this one."""
        with contextlib.ExitStack() as undo:
            for target, name, made in (
                (self.module, "DEVICE", "meta"),
                (torch.cuda, "empty_cache", self._empty_cache),
                (torch.cuda, "mem_get_info", lambda: (GPU.total_bytes, GPU.total_bytes)),
                (torch.cuda, "set_per_process_memory_fraction", self._limit),
                (torch.Tensor, "pin_memory", lambda tensor: tensor),
                (optimizer, "_get_foreach_kernels_supported_devices", lambda: ["meta"]),  # as on CUDA
                (device_data, "_has_compiled", lambda: False),  # another test may have
                (torch.utils.data.DataLoader, "__init__", self._seeing_loaders()),
            ):
                undo.enter_context(mock.patch.object(target, name, made))
            for hook in (
                module.register_module_forward_pre_hook(lambda *_: self._read("pre_forward")),
                optimizer.register_optimizer_step_pre_hook(lambda *_: self._read("post_backward")),
                optimizer.register_optimizer_step_post_hook(lambda *_: self._end_step()),
            ):
                undo.callback(hook.remove)
            undo.enter_context(self)
            yield

    def _allocate(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self._blocks or not storage.nbytes():
            return
        if _is_in_backward() and self._backward_site is None:
            self._backward_site = self._site()
            self._read("post_forward_pre_backward")
        self._blocks[storage._cdata] = self.recording.malloc(storage.nbytes())
        weakref.finalize(storage, self._free, storage._cdata)

    def _free(self, storage: int) -> None:
        self.recording.free(self._blocks.pop(storage))

    def _limit(self, share: float) -> None:
        assert not self.recording.entries, "a limit comes before the first request"
        self.recording = _Recording(self._frames, capacity=int(share * GPU.total_bytes))
        self.settings[FRACTION_SETTING] = str(share)

    def _empty_cache(self) -> None:
        self._is_emptying = True
        self.recording.empty_cache()
        self._is_emptying = False
        self._stalls.append(SiteCalls(site=self._site(), call="torch.cuda.empty_cache", count=1, us=1000.0))

    def _seeing_loaders(self) -> Callable[..., None]:
        original = torch.utils.data.DataLoader.__init__

        def build(loader: Any, *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            self.loaders.append(loader_built(site=self._site(), batch_size=loader.batch_size, num_batches=len(loader)))

        return build

    def _address(self, storage: torch.UntypedStorage) -> int:
        block = self._blocks.get(storage._cdata)
        return 0 if block is None else block.address

    def _start_step(self) -> None:
        if len(self.steps) == device_data.FIRST_STEP:
            self._watch.begin()
        elif len(self.steps) == device_data.FIRST_STEP + device_data.NUM_STEPS:
            self.events.append(self._watch.end())
        else:
            self._watch.next_step()
        self._started_us = self.recording.now_us
        self._stalls: list[SiteCalls] = []
        self._memory: dict[str, BoundaryMemory] = {}
        self._backward_site: str | None = None

    def _read(self, boundary: str) -> None:
        """Once in a step; the first one begins with its forward pass."""
        if not self.steps and not self._memory:
            self._started_us = self.recording.now_us
        if boundary not in self._memory:
            allocator, at_us = self.recording.allocator, float(self.recording.now_us - self._started_us)
            self._memory[boundary] = BoundaryMemory(
                boundary, at_us, allocator.allocated, allocator.reserved, num_retries=allocator.calls.num_retries
            )

    def _end_step(self) -> None:
        self._read("post_optimizer_step")
        samples = {"samples": self.loaders[0].batch_size, "loader": 1} if self.loaders else {"samples": 0}
        self.steps.append(
            make_step(
                len(self.steps), started_ns=1000 * self._started_us, memory=list(self._memory.values()),
                stalls=self._stalls, backward_site=self._backward_site, **samples,
            )
        )  # fmt: skip
        if len(self.steps) == self._num_recorded:
            self.snapshot = self.recording.snapshot()
        if len(self.steps) == self._num_steps:
            raise _EnoughSteps
        self._start_step()

    def _site(self) -> str:
        """The innermost line of the case."""
        case = next(one for one in _stack() if one.f_code.co_filename == self.module.__file__)
        return f"{self.file}:{case.f_lineno}:{case.f_code.co_qualname}"

    def _frames(self) -> list[Frame] | None:
        """As a snapshot has them, innermost first; None within a backward pass."""
        if _is_in_backward():
            return None
        found = [EMPTY_CACHE] if self._is_emptying else []
        for frame in _stack():
            code = frame.f_code
            if code is made_run.__code__:
                break
            if code.co_filename not in OURS:
                place = code.co_filename, frame.f_lineno, code.co_name
                found.append(self._known_frames.setdefault(place, _plain_frame(*place)))
        return found


def _is_in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _plain_frame(file: str, line: int, name: str) -> Frame:
    return {"filename": file, "line": line, "name": name}


class _Shapes:
    """What operators give, found out once for arguments of the same shapes: in Python that takes torch long."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[list[_Shape], TreeSpec]] = {}

    def result_of(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The operator's result; an operator that writes gives what it wrote to, which has no values here."""
        given, spec = tree_flatten((args, kwargs))
        is_here = any(isinstance(one, torch.Tensor) and one.is_meta for one in given)
        if not is_here or any(one.alias_info and not one.alias_info.is_write for one in func._schema.returns):
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            return args[0] if func._schema.returns else None
        key = func, spec, tuple(_shape_of(one) if isinstance(one, torch.Tensor) else one for one in given)
        if key not in self._known:
            result = func(*args, **kwargs)
            made, how = tree_flatten(result)
            self._known[key] = [_shape_of(one) for one in made], how
            return result
        shapes, how = self._known[key]
        return tree_unflatten(
            [torch.empty_strided(*shape, device="meta", dtype=dtype) for *shape, dtype in shapes], how
        )


def _shape_of(tensor: torch.Tensor) -> _Shape:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def _end_of_window(case: Case) -> int:
    """The step before which the first window with the allocator's history closes."""
    options = dict(zip(case.options[::2], case.options[1::2], strict=True))
    steps = options.get("--memory-steps")
    return DEFAULT_MEMORY_STEPS[0][1] if steps is None else int(steps.removeprefix("0:"))


def _stack() -> Iterator[FrameType]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
