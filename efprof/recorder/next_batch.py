"""Takes the next batch out of a step whose gradients turn out to have been thrown away.

`optimizer.zero_grad()` at the top of a loop, or just before its backward pass, comes after the next batch was fetched,
or even went forward: until then the loop looks as if it gathered gradients.
"""

from typing import Any

from efprof.recorder.open_step import OpenStep, Span


class NextBatch:
    """What came since the last backward pass of a step, from the next fetch or forward pass on; taken out of it."""

    def __init__(self, step: OpenStep, first: int) -> None:
        self._spans: list[Span] = step.spans[first:]
        self.start_ns = self._spans[0][1]
        """By `time.perf_counter_ns`."""
        marks = step.device_marks or []
        num_kept = max(0, len(marks) - len(self._spans))
        self._marks: list[tuple[Any, Any]] = marks[num_kept:]
        self._memory = [reading for reading in step.memory if reading[1] >= self.start_ns]
        num_fetches, samples, num_loaders = step.fed
        self._num_fetches, self._samples = step.num_fetches - num_fetches, step.samples - samples
        self._loaders, self._had_loader = step.loaders[num_loaders:], step.had_loader
        del step.spans[first:], marks[num_kept:], step.loaders[num_loaders:]
        step.memory = step.memory[: len(step.memory) - len(self._memory)]
        step.num_fetches, step.samples = num_fetches, samples

    def move_to(self, step: OpenStep) -> None:
        """Have this step, which begins with it, hold it."""
        step.spans, step.memory, step.device_marks = self._spans, self._memory, self._marks or None
        step.num_fetches, step.samples, step.loaders = self._num_fetches, self._samples, self._loaders
        step.had_loader = self._had_loader
        step.has_forward = any(stage == "forward" for stage, _, _ in self._spans)


def first_span_of_it(step: OpenStep) -> int | None:
    """The number of the first span that fetches or goes forward since the last backward pass."""
    since = next((i for i in range(len(step.spans), 0, -1) if step.spans[i - 1][0] == "backward"), 0)
    return next((i for i in range(since, len(step.spans)) if step.spans[i][0] in ("data", "forward")), None)
