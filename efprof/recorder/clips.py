"""The norm that gradients are clipped by, which need not be computed again."""

import math

import torch


class Clips:
    """What `clip_grad_norm_` gave, until it shows that it stands for some of the gradients only."""

    def __init__(self) -> None:
        self._last: tuple[int, torch.Tensor, float] | None = None
        """The step in which gradients were clipped, their norm before, and the norm they were clipped to."""
        self._clipped_to: float | None = None
        self._are_partial = self._is_waiting = False

    def note(self, number: int, norm: torch.Tensor, max_norm: float) -> None:
        """The norm of this step was computed already: take it, from before the clipping."""
        if self._is_waiting:  # as where each module is clipped by itself, whose optimizers step after that
            self._become_partial()
        if type(norm) is torch.Tensor and isinstance(max_norm, int | float):
            self._last = (number, norm, max_norm)
            self._is_waiting = max_norm != math.inf  # some only ask for the norm so

    def backward_began(self) -> None:
        """What is clipped next may be the same gradients, to which others were added."""
        self._is_waiting = False

    def take(self, number: int) -> torch.Tensor | None:
        """The norm that this step's gradients were clipped by, where it stands for all of them."""
        clip, self._last = self._last, None
        self._clipped_to, self._is_waiting = None, False
        if self._are_partial or clip is None or clip[0] != number:
            return None
        self._clipped_to = clip[2]
        return clip[1]

    def are_of_all(self, clip_norm: float, norm: float) -> bool:
        """Whether the gradients have the norm that they were clipped to: if not, only some were, or by another norm."""
        if self._clipped_to is None:
            return True
        left = min(clip_norm, self._clipped_to) if math.isfinite(clip_norm) else clip_norm
        if math.isfinite(norm) and not math.isclose(norm, left, rel_tol=0.01, abs_tol=1e-6):
            self._become_partial()
        return not self._are_partial

    def _become_partial(self) -> None:
        self._are_partial = True
