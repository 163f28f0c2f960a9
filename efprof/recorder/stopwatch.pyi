from collections.abc import Callable
from mmap import mmap
from weakref import ref

import torch

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
    optimizer: int
    """The one whose steps it takes, by its `id`."""
    limit: int
    """Steps after which `full` is asked."""
    read_due: int
    """From this step on, all gradients are to be read, in Python."""
    takes_numbers: bool
    takes_clips: bool
    """Whether what gradients were clipped by is the norm of all of the optimizer's."""
    canary: ref[torch.Tensor] | None
    loss: ref[torch.Tensor] | None
    """What backward was called on last, in a sprint."""
    gradient_norm: torch.Tensor | None
    """What the gradients of the step of that number were clipped by."""

    def __new__(
        cls,
        *,
        unexpected: Callable[[int], bool],
        full: Callable[[int], bool],
        tensor: type,
        float32: torch.dtype,
        next_sequence: Callable[[], int],
        max_step_ns: int,
        write_after_ns: int,
    ) -> Stopwatch: ...
    def mark(self, code: int, /) -> bool:
        """A stage begins or ends."""
    def counted(self, batch: object, /) -> bool:
        """A batch arrived."""
    def took_loss(self, tensors: object, /) -> bool:
        """Backward is called on these, from the caller of the function that calls this."""
    def clipped(self, norm: object, /) -> bool:
        """Gradients were clipped by this."""
    def updates(self, optimizer: object, /) -> bool:
        """This optimizer is about to step; False also where its gradients have to be read or look bad."""
    def reads_by_design(self) -> bool:
        """Whether a loader or an optimizer is running."""
    def use(self, pages: mmap, /) -> None:
        """Write to this memory from now on."""
    def start(self, codes: bytes, number: int, at_ns: int, epoch_offset_ns: int, limit: int, /) -> None:
        """A step of this number and of these calls begins with the first of them."""
    def stop(self) -> None:
        """See nothing any more; `at` and `number` stand still."""
    def release(self) -> None:
        """Let go of the memory."""
