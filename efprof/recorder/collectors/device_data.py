"""Sees what two steps use of the large tensors that the program keeps on a device beside its model.

Where there are any when step 1 begins, every call of torch's functions is looked at from there to the begin of step 3:
which stretches of such a tensor are read, and from which line. No operation runs differently for it.
"""

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import TensorWeakRef

from efprof.artifacts.events import DeviceData, DeviceTensor
from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.numbers.step_numbers import tensors_in
from efprof.recorder.session.session import Session
from efprof.recorder.session.shell import Guard, Note
from efprof.recorder.session.sites import Sites

DEVICE = "cuda"
FIRST_STEP = 1
"""The first step's own work spaces, and an optimizer's state, are not there before it."""
NUM_STEPS = 2
"""As many show whether each step uses another part."""
MIN_BYTES = 64 * 1024**2
"""Less in all is not what a device runs out of memory for; then nothing is looked at."""
MAX_TENSORS = 512
INDEXING = frozenset({"__getitem__", "index_select", "embedding", "gather", "take", "take_along_dim"})
"""They read as much as they give."""


@dataclass(kw_only=True, slots=True)
class _Use:
    """What the steps did with one storage: stretches (step, offset, elements) that were read, bytes drawn by index."""

    num_bytes: int
    address: int
    version: int
    tensors: list[TensorWeakRef] = field(default_factory=list)
    stretches: dict[tuple[int, int, int], int] = field(default_factory=dict)
    drawn_bytes: int = 0
    taken_at: dict[str, None] = field(default_factory=dict)
    read_at: dict[str, None] = field(default_factory=dict)

    def told(self) -> DeviceTensor | None:
        """None where it was not used, or all its tensors are gone: another storage may lie where theirs was."""
        tensor = next((tensor for one in self.tensors if (tensor := one()) is not None), None)
        if tensor is None or not (self.stretches or self.drawn_bytes):
            return None
        return DeviceTensor(
            address=self.address,
            num_bytes=self.num_bytes,
            taken_bytes=sum(self.stretches.values()) + self.drawn_bytes,
            is_varied=bool(self.drawn_bytes) or len({stretch[1:] for stretch in self.stretches}) > 1,
            is_written=tensor._version != self.version,
            sites=list(self.taken_at or self.read_at),
        )


class _Mode(TorchFunctionMode):
    def __init__(self, look: Callable[[Any, list[Any], Any], None]) -> None:
        super().__init__()
        self.is_over = False
        self._look = look

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self.is_over:
            self._look(func, [*args, *kwargs.values()], result)
        return result


class DataWatch:
    """Finds the tensors, has their use seen, and tells of it."""

    def __init__(self, sites: Sites, guard: Guard, note: Note) -> None:
        self._sites, self._note, self._look = sites, note, guard(self._look_at)
        self._uses: dict[int, _Use] = {}
        self._step = 0
        self._mode: _Mode | None = None
        self._why_not = ""

    def step_began(self, step: OpenStep) -> None:
        if DEVICE == "cuda" and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return
        self._step = step.number
        if step.number == FIRST_STEP:
            self._begin()
        elif step.number == FIRST_STEP + NUM_STEPS:
            self.end()
            used = [told for use in self._uses.values() if (told := use.told()) is not None]
            used.sort(key=lambda one: -one.num_bytes)
            self._note(
                DeviceData(step=step.number, num_steps=NUM_STEPS, tensors=used[:MAX_TENSORS], why_not=self._why_not)
            )

    def _begin(self) -> None:
        self._uses = _candidates()
        if sum(use.num_bytes for use in self._uses.values()) < MIN_BYTES:
            self._uses.clear()
            return
        self._why_not = _why_not()
        if not self._why_not:
            self._mode = _Mode(self._look)
            self._mode.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Look no more."""
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.is_over = True
            stack = _modes()
            if stack and stack[-1] is mode:  # else one of the program's was put there meanwhile, and ours stays idle
                mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _look_at(self, func: Any, given: list[Any], result: Any) -> None:
        for tensor in tensors_in(given):
            use = self._uses.get(_key(tensor))
            if use is not None:
                self._note_use(use, tensor, func, result)

    def _note_use(self, use: _Use, given: torch.Tensor, func: Any, result: Any) -> None:
        made = tensors_in(result)
        if not made:
            return  # its shape was asked for
        is_view = any(_key(one) == _key(given) for one in made)
        site = self._sites.of_caller()
        is_drawn = getattr(func, "__name__", "") in INDEXING
        if site is not None and (is_drawn or (is_view and made[0].numel() < given.numel())):
            use.taken_at[site] = None
        if is_view:
            return  # what is done with the view, shows
        if is_drawn:
            use.drawn_bytes += made[0].numel() * given.element_size()
            return
        stretch = self._step, int(given.storage_offset()), given.numel()
        use.stretches[stretch] = given.numel() * given.element_size()
        if site is not None:
            use.read_at[site] = None


def start(session: Session) -> None:
    watch = DataWatch(session.sites, session.shell.guard("device_data"), session.note)
    session.attach("device_data", watch)
    session.undo_at_end(watch.end)  # also where the collector was stopped by an error


def _candidates() -> dict[int, _Use]:
    """Each storage on the device that no parameter, buffer or gradient has, and nothing that needs a gradient."""
    tensors: list[torch.Tensor] = []
    of_model: set[int] = {0}
    for one in gc.get_objects():
        kind = type(one)
        if kind is torch.Tensor and one.device.type == DEVICE:
            tensors.append(one)
        elif issubclass(kind, torch.nn.Parameter):
            of_model |= {_key(part) for part in (one, one.grad) if part is not None}
        elif issubclass(kind, torch.nn.Module) and "_buffers" in one.__dict__:
            of_model |= {_key(buffer) for buffer in one.__dict__["_buffers"].values() if buffer is not None}
    found: dict[int, _Use] = {}
    for tensor in tensors:
        key = _key(tensor)
        if key in of_model or tensor.requires_grad or tensor.is_inference():
            continue
        if key not in found:
            storage = tensor.untyped_storage()
            found[key] = _Use(num_bytes=storage.nbytes(), address=storage.data_ptr(), version=tensor._version)
        found[key].tensors.append(TensorWeakRef(tensor))
    return found


def _modes() -> list[TorchFunctionMode]:
    return list(torch.overrides._get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def _why_not() -> str:
    if _modes():
        return "a mode of the program's own was on"
    return "the program is compiled, which a mode would have done anew" if _has_compiled() else ""


def _has_compiled() -> bool:
    """Whether the program has had anything compiled, or will as soon as it is called; `disable` notes None there."""
    backends = getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", {})
    return any(backend is not None for backend in backends.values())


def _key(tensor: torch.Tensor) -> int:
    """What tells its storage from all others that are there; 0 of one that has none of its own."""
    try:
        return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else 0
    except (RuntimeError, NotImplementedError):  # what `torch.func` puts around one; nothing tells beforehand
        return 0
