from collections.abc import Callable
from mmap import mmap
from typing import Any
from weakref import ref

import torch

Told = Callable[..., Any]
Arguments = Callable[[tuple[Any, ...], dict[str, Any]], Any]

class Stopwatch:
    """Takes the instants and numbers of the steps of a sprint, which it writes into the pages it was given.

    What its methods answer tells whether it took note; where they answer False, Python has to see to it.
    """

    is_on: bool
    at: int
    """How many calls of the open step it has seen."""
    nested: int
    """Modules of the outermost one's class that are called within it."""
    sequence: int
    """Autograd's sequence number at the start of the open step's forward pass; negative before it."""
    number: int
    """Of the open step."""
    thread: int
    limit: int
    """Steps after which `full` is asked."""
    memory_due: int
    """From this step on, the hook after an update asks for memory to be read."""
    read_due: int
    """From this step on, all gradients are to be read, in Python."""
    are_hooks_in: bool
    """Those for all modules, which see every call of one."""
    takes_numbers: bool
    takes_clips: bool
    """Whether what gradients were clipped by is the norm of all of the optimizer's."""
    learning_rate: float
    """That of the open step, NaN where it is not known."""
    canaries: dict[int, ref[torch.Tensor] | None]
    """The parameter whose gradient is looked at, by the optimizer's `id`."""
    loss: ref[torch.Tensor] | None
    """What backward was called on last, in a sprint."""
    gradient_norm: torch.Tensor | None
    """That of the gradients that were clipped in the step of that number, before it; None once an optimizer has taken
    it."""
    max_norm: float
    """To which they were clipped at most."""

    def __new__(
        cls,
        *,
        unexpected: Callable[[int], bool],
        full: Callable[[int], bool],
        tensor: type,
        float32: torch.dtype,
        next_sequence: Callable[[], int],
        is_grad_enabled: Callable[[], bool],
        is_awaited: Callable[[BaseException], bool],
        flags: object,
        exchange: object | None,
        sequence_at: int,
        grad_mode_at: int,
        max_step_ns: int,
        write_after_ns: int,
    ) -> Stopwatch: ...
    def mark(self, code: int, /) -> bool:
        """A stage begins or ends."""
    def counted(self, batch: object, /) -> bool:
        """A batch arrived."""
    def fetching(
        self, original: Told, began: Told, ended: Told, count: Told, exhausted: Told, broke_off: Told, /
    ) -> Told:
        """`__next__` of a loader's iterator.

        `began` is called with the iterator and `ended` with the batch where Python has to see to them, `count` with a
        batch whose samples it has to count, `exhausted` where there is none left, `broke_off` where none came.
        """
    def going_backward(self, original: Told, entered: Told, noted: Told, left: Told, /) -> Told:
        """`torch.autograd.backward`.

        `entered` is called with the tensors and the gradients that they are given, or None, and `left` with nothing
        where Python has to see to them; `noted` as `entered` where it has to see to their numbers, as wherever such
        gradients are given, or to the place that called.
        """
    def reading(self, original: Told, began: Told, has_read: Told, /) -> Told:
        """What copies a tensor's value to Python.

        Where no loader and no optimizer is running, `began` is called with the tensor, and `has_read` with nothing
        after the read if it answered True.
        """
    def clipping(self, original: Told, began: Told, ended: Told, taken: Told, /) -> Arguments:
        """`clip_grad_norm_`.

        `began` and `ended` are called with nothing where Python has to see to them, `taken` with the norm, the
        arguments and the named ones where it has to take that.
        """
    def collecting(self, original: Told, /) -> Told:
        """What the garbage collector calls; what a signal's handler raises within it goes to the program."""
    def watch_reader(self, original: Told, began: Told, has_read: Told, /) -> bool:
        """As `reading`, for one function in C that stays in its place; False where it cannot be watched so."""
    def leave_reader(self) -> None:
        """See its calls no more."""
    def watch_class(self, kind: type, began: Told, ended: Told, /) -> bool:
        """See the calls of this kind of module from now on, which changes nothing in the class that Python can see.

        `began` is called with the module and `ended` with nothing where Python has to see to them, and neither within
        another watched module, or while a program is exported; of all classes those of the last call are told. False
        where the class is not called as those in Python are.
        """
    def leave_classes(self, *kinds: type) -> None:
        """See the calls of these no more, nor of any other."""
    def updates(self, optimizer: object, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> bool | None:
        """This optimizer's `step` is called with these arguments, itself among them.

        None where Python has to see to the step; False where the optimizer's gradients have to be read or look bad, or
        where it is another one.
        """
    def updated(self) -> bool | None:
        """It is done; None where Python has to see to that, False where memory is to be read."""
    def add_loss(self, value: float, /) -> bool:
        """A loss that Python had to see to; False where no step is open here."""
    def note_norm(self, value: float, /) -> bool:
        """The same of the norm of one optimizer's gradients, `NAN_NORM` where that is NaN."""
    def note_rate(self, value: float, /) -> bool:
        """The same of the learning rate."""
    def use(self, pages: mmap, /) -> None:
        """Write to this memory from now on."""
    def start(
        self, codes: bytes, optimizers: tuple[int, ...], number: int, at_ns: int, epoch_offset_ns: int, limit: int, /
    ) -> None:
        """A step of this number, of these calls and of these optimizers by `id`, begins with the first call."""
    def stop(self) -> None:
        """See nothing any more; `at` and `number` stand still."""
    def release(self) -> None:
        """Let go of the memory."""
