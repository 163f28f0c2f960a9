"""What other threads than the training one do for a step: some programs call backward from several at once."""

from threading import get_ident
from time import perf_counter_ns

import torch

from efprof.recorder.open_step import Span

MAX_SPANS = 1000
"""More than any step has; a thread that only infers would otherwise fill memory."""


class OtherThreads:
    """Collects their forward and backward passes; each call touches one list or dictionary, so none needs a lock."""

    def __init__(self) -> None:
        self.is_paused = False
        """While nobody counts as the one that trains, not even that thread's calls count."""
        self._spans: list[Span] = []
        self._depths: dict[int, int] = {}
        self._starts: dict[tuple[int, str], int] = {}

    def forward_began(self) -> None:
        """A module was called."""
        if self.is_paused:
            return
        thread = get_ident()
        depth = self._depths[thread] = self._depths.get(thread, 0) + 1
        if depth == 1 and torch.is_grad_enabled():
            self._starts[thread, "forward"] = perf_counter_ns()

    def forward_ended(self) -> None:
        """The module call is over."""
        if self.is_paused:
            return
        thread = get_ident()
        depth = self._depths[thread] = max(0, self._depths.get(thread, 0) - 1)
        if depth == 0:
            self._close(thread, "forward")

    def backward_began(self) -> None:
        """Gradients are being computed."""
        if self.is_paused:
            return
        self._starts[get_ident(), "backward"] = perf_counter_ns()

    def backward_ended(self) -> None:
        """They are computed."""
        if self.is_paused:
            return
        self._close(get_ident(), "backward")

    @property
    def have_spans(self) -> bool:
        """Whether they did anything for a step that is not over."""
        return bool(self._spans)

    def first_since(self, after_ns: int) -> int | None:
        """When, after this, they began to work for a step; None where they did not."""
        recent = [(stage, start) for stage, start, _ in self._spans if start >= after_ns]
        if all(stage != "backward" for stage, _ in recent):
            return None
        return min(start for _, start in recent)

    def take_spans(self, own: list[Span], end_ns: int) -> tuple[list[Span], int]:
        """Their passes up to `end_ns` where the training thread was in no stage, and how many backward passes."""
        if not self._spans:
            return [], 0
        theirs = [span for span in self._spans if span[2] <= end_ns]
        self._spans = [span for span in self._spans if span[2] > end_ns]
        num_backwards = sum(stage == "backward" for stage, _, _ in theirs)
        if not num_backwards:
            return [], 0  # a thread that only infers has nothing to do with the step
        return _outside(theirs, own), num_backwards

    def _close(self, thread: int, stage: str) -> None:
        start = self._starts.pop((thread, stage), None)
        if start is not None and len(self._spans) < MAX_SPANS:
            self._spans.append((stage, start, perf_counter_ns()))


def _outside(theirs: list[Span], own: list[Span]) -> list[Span]:
    """`theirs` in the order they began, cut so that no two overlap, nor one of `own`."""
    kept: list[Span] = []
    taken = sorted((start, end) for _, start, end in own)
    covered = 0
    for stage, start, end in sorted(theirs, key=lambda span: span[1]):
        start = max(start, covered)
        for own_start, own_end in taken:
            if own_start < end and own_end > start:
                if own_start > start:
                    kept.append((stage, start, own_start))
                start = max(start, own_end)
        if start < end:
            kept.append((stage, start, end))
        covered = max(covered, end)
    return kept
