"""The CUDA device that the training is on: an event on another one would start a context there, of some 500 MiB."""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import torch

MOVED_STEPS: Final = 10
"""In a row that have their loss on another device, by which the training has moved: of a critic there are fewer."""


class TrainingDevice:
    """Until a loss tells, it is where PyTorch has memory: the current device, else the one with most of it.

    `guard` makes a function harmless: once it has failed, as with allocators that have no statistics, it answers None.
    """

    def __init__(self, guard: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function) -> None:
        self.index: int | None = None
        """None where the program has nothing on a device, as far as is known."""
        self.statistics: Callable[[], dict[str, Any] | None] = guard(self._statistics)
        """The allocator's raw counters: flattening them, as `torch.cuda.memory_stats` does, takes ten times as long."""
        self._with_most_memory = guard(_with_most_memory)
        self._seen: deque[int] = deque(maxlen=MOVED_STEPS)

    def look(self) -> None:
        """The program may have begun to use one."""
        if not self._seen and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self.index = self._with_most_memory()

    def see(self, losses: object) -> bool:
        """A step's first backward pass is called on these: whether the training is on another device than it was."""
        loss, before = losses[0] if isinstance(losses, list | tuple) and losses else losses, self.index
        if type(loss) is torch.Tensor and loss.is_cuda:
            self._seen.append(loss.device.index)
            if len(set(self._seen)) == 1:
                self.index = loss.device.index
        return self.index != before

    def _statistics(self) -> dict[str, Any] | None:
        return None if self.index is None else torch._C._cuda_memoryStats(self.index)


def _with_most_memory() -> int | None:
    """Asking the allocator starts no context."""
    indices, current = range(torch.cuda.device_count()), torch.cuda.current_device()
    reserved = [torch._C._cuda_memoryStats(index)["reserved_bytes"]["all"]["current"] for index in indices]
    most = max(indices, key=lambda index: (index == current and reserved[index] > 0, reserved[index]))
    return most if reserved[most] else None
