"""The losses that a gradient scaler multiplied, as the program made them."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

MAX_RECENT = 1000
"""Scaled losses of one update whose place in autograd's graph is known."""

MAX_OPERATIONS = 16
"""Between them and what backward is called on, such as a sum and a division."""


class ScaledLosses:
    """Those that are alive, and where the last ones stand in autograd's graph."""

    def __init__(self) -> None:
        self._unscaled: Any = WeakIdKeyDictionary()
        self._recent: deque[int] = deque(maxlen=MAX_RECENT)
        """Autograd's sequence numbers of the multiplications: its nodes would keep the graph alive."""
        self._scale: torch.Tensor | None = None

    def note(self, outputs: object, scaled: object, scale: object) -> None:
        """`GradScaler.scale` was given `outputs`, a tensor or several, and gave `scaled`."""
        if isinstance(outputs, list | tuple) and isinstance(scaled, list | tuple):
            for output, of_it in zip(outputs, scaled, strict=False):
                self.note(output, of_it, scale)
        elif isinstance(outputs, torch.Tensor) and isinstance(scaled, torch.Tensor):
            self._scale = scale if isinstance(scale, torch.Tensor) else None
            if outputs.numel() == 1:
                self._unscaled[scaled] = outputs.detach()
            if scaled.grad_fn is not None:
                self._recent.append(_number_of(scaled.grad_fn))

    def used_up(self) -> None:
        """The update is over, and the scale may change."""
        self._recent.clear()

    def unscaled(self, loss: torch.Tensor) -> torch.Tensor:
        """The same where it was not scaled; what was made of a scaled one since, such as a mean, is divided."""
        known = self._unscaled.get(loss) if self._unscaled else None
        if isinstance(known, torch.Tensor):
            return known
        if not self._recent or self._scale is None or self._scale.device != loss.device:
            return loss
        return loss if set(self._recent).isdisjoint(self._made_of(loss)) else loss.detach() / self._scale

    def _made_of(self, loss: torch.Tensor) -> Iterator[int]:
        """The last operations that it was made by, none from before the first of the scaled losses."""
        first, waiting = min(self._recent), deque([loss.grad_fn])
        for _ in range(MAX_OPERATIONS):
            node = waiting.popleft() if waiting else None
            if node is None:
                return
            yield _number_of(node)
            waiting.extend(made for made, _ in node.next_functions if made is not None and _number_of(made) >= first)


def _number_of(node: Any) -> int:
    number: int = node._sequence_nr()
    return number
