"""Reads small device tensors on the host without making the host wait for the device's latest work."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

Tag = TypeVar("Tag")
Values = npt.NDArray[np.generic]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Copy:
    """A copy under way from the device; `values` may be looked at once `done` has happened."""

    values: torch.Tensor
    done: torch.cuda.Event | None


class LateRead(Generic[Tag]):
    """A queue of tensors on their way to the host, each with a tag, given out in order as they arrive.

    On CUDA a value travels by an asynchronous copy into pinned memory and arrives when the event behind it has
    happened, which is asked and never waited for. On the CPU it is host memory already. MPS cannot be asked, so
    there a value counts as arrived once a newer one is under way, and reading it waits for that older work alone.
    """

    def __init__(self) -> None:
        """Start with nothing under way."""
        self._copies: deque[tuple[Tag, _Copy]] = deque()

    def push(self, tag: Tag, tensor: torch.Tensor) -> None:
        """Send a small tensor of any shape on its way; the caller must not change it in place afterwards."""
        tensor = tensor.detach()
        if tensor.is_cuda:
            values = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            values.copy_(tensor, non_blocking=True)
            done = torch.cuda.current_stream(tensor.device).record_event()
            self._copies.append((tag, _Copy(values=values, done=done)))
        else:
            self._copies.append((tag, _Copy(values=tensor, done=None)))

    def arrived(self) -> list[tuple[Tag, Values]]:
        """What has reached the host since the last call, oldest first."""
        ready: list[tuple[Tag, Values]] = []
        while self._copies and self._has_oldest_arrived():
            tag, copy = self._copies.popleft()
            ready.append((tag, copy.values.numpy(force=True)))
        return ready

    def drain(self) -> list[tuple[Tag, Values]]:
        """Everything still under way, oldest first. Waits for the device: only for outside the training step."""
        rest: list[tuple[Tag, Values]] = []
        while self._copies:
            tag, copy = self._copies.popleft()
            if copy.done is not None:
                copy.done.synchronize()
            rest.append((tag, copy.values.numpy(force=True)))
        return rest

    def _has_oldest_arrived(self) -> bool:
        copy = self._copies[0][1]
        if copy.done is not None:
            return bool(copy.done.query())  # type: ignore[no-untyped-call]  # torch has no types there
        return copy.values.device.type == "cpu" or len(self._copies) > 1
