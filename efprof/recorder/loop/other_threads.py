"""What other threads than the training one do for a step: some programs call backward from several at once."""

from collections.abc import Callable
from threading import get_ident, local
from time import perf_counter_ns

import torch

from efprof.recorder.loop.open_step import Span

MAX_SPANS = 1000
"""More than any step has; a thread that only infers would otherwise fill memory."""


class OtherThreads:
    """Collects their forward and backward passes; each call touches one list or dictionary, so none needs a lock.

    Not those of a thread that is apart: it trains for itself while another one is recorded.
    """

    def __init__(self) -> None:
        self.is_paused = False
        """While nobody counts as the one that trains, not even that thread's calls count."""
        self.num_updates = 0
        """Of threads that are apart."""
        self.trained: list[Callable[..., None]] = []
        """Called at the first of these updates."""
        self._spans: list[tuple[int, Span]] = []
        """With the thread of each."""
        self._depths: dict[int, int] = {}
        self._starts: dict[tuple[int, str], int] = {}
        self._in_backward: set[int] = set()
        """Threads that wait for a backward pass, those that are apart among them."""
        self._contributors: set[int] = set()
        """Threads whose backward passes became part of a step beside the recorded thread's own."""
        self._calling = local()
        """What is known of the thread that calls; by its number it might be taken for one that is no more."""

    def forward_began(self) -> None:
        if self.is_paused or self.is_separate:
            return
        thread = get_ident()
        depth = self._depths[thread] = self._depths.get(thread, 0) + 1
        if depth == 1 and torch.is_grad_enabled():
            self._starts[thread, "forward"] = perf_counter_ns()

    def forward_ended(self) -> None:
        if self.is_paused or self.is_separate:
            return
        thread = get_ident()
        depth = self._depths[thread] = max(0, self._depths.get(thread, 0) - 1)
        if depth == 0:
            self._close(thread, "forward")

    def backward_began(self) -> None:
        self._in_backward.add(get_ident())
        if self.is_paused or self.is_separate:
            return
        self._starts[get_ident(), "backward"] = perf_counter_ns()

    def backward_ended(self) -> None:
        self._in_backward.discard(get_ident())
        if self.is_paused or self.is_separate:
            return
        self._close(get_ident(), "backward")

    @property
    def have_contributed(self) -> bool:
        """Whether passes of any became part of a step beside the recorded thread's own."""
        return bool(self._contributors)

    def first_since(self, after_ns: int) -> int | None:
        """When, after this, they began to work for a step; None where they did not."""
        recent = [(stage, start) for _, (stage, start, _) in self._spans if start >= after_ns]
        if all(stage != "backward" for stage, _ in recent):
            return None
        return min(start for _, start in recent)

    def take_spans(self, own: list[Span], end_ns: int) -> tuple[list[Span], int]:
        """Their passes up to `end_ns` where the training thread was in no stage, and how many backward passes."""
        if not self._spans:
            return [], 0
        theirs = [span for _, span in self._spans if span[2] <= end_ns]
        if any(stage == "backward" for stage, _, _ in own):
            self._contributors |= {
                thread for thread, (stage, _, end) in self._spans if stage == "backward" and end <= end_ns
            }
        self._spans = [(thread, span) for thread, span in self._spans if span[2] > end_ns]
        num_backwards = sum(stage == "backward" for stage, _, _ in theirs)
        if not num_backwards:
            return [], 0  # a thread that only infers has nothing to do with the step
        return _outside(theirs, own), num_backwards

    # Of the thread that calls.

    @property
    def works_for_training_thread(self) -> bool:
        """Whether it makes a pass on one of autograd's own threads, which no thread but the recorded one waits for."""
        return self.is_autograd_thread and not self._in_backward

    @property
    def is_autograd_thread(self) -> bool:
        """Whether it is one of autograd's own threads, within a pass that another one waits for."""
        return torch._C._current_graph_task_id() != -1 and get_ident() not in self._in_backward

    @property
    def caller(self) -> int:
        """It; where it is one of autograd's own, the one that waits for its pass, if that is the only one that does."""
        passing = list(self._in_backward)
        return passing[0] if self.is_autograd_thread and len(passing) == 1 else get_ident()

    @property
    def is_separate(self) -> bool:
        return getattr(self._calling, "is_separate", False)

    @property
    def is_within(self) -> bool:
        thread = get_ident()
        return bool(self._depths.get(thread)) or (thread, "backward") in self._starts

    @property
    def has_contributed(self) -> bool:
        """Whether passes of it became part of a step beside the recorded thread's own."""
        return self.caller in self._contributors

    def own_spans(self) -> list[Span]:
        thread = self.caller
        return [span for owner, span in self._spans if owner == thread]

    def becomes_recorded(self) -> None:
        """It is the one that trains from here on; what it did counts as that one's."""
        self._forget_own()
        self._in_backward.discard(self.caller)

    def separate_thread(self) -> None:
        """It trains for itself: what it does belongs to no step."""
        self._forget_own()
        self._calling.is_separate = True

    def count_update(self) -> None:
        self.num_updates += 1
        for listener in self.trained:
            listener()
        self.trained.clear()

    def _forget_own(self) -> None:
        thread = self.caller
        self._spans = [(owner, span) for owner, span in self._spans if owner != thread]
        self._starts = {key: start for key, start in self._starts.items() if key[0] != thread}
        self._depths.pop(thread, None)
        self._contributors.discard(thread)

    def _close(self, thread: int, stage: str) -> None:
        start = self._starts.pop((thread, stage), None)
        if start is not None and len(self._spans) < MAX_SPANS:
            self._spans.append((thread, (stage, start, perf_counter_ns())))


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
