"""The step that is being recorded, and how it becomes a line of steps.jsonl."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from efprof.artifacts.steps import BoundaryMemory, SiteCalls, StageSpan, StepRecord
from efprof.recorder.numbers.step_numbers import StepNumbers
from efprof.recorder.session.foreign import is_tensor, items_of

MAX_ITEMS = 100
"""Of a list or mapping, that are looked at for tensors."""

Calls = dict[tuple[str, str, tuple[str, ...]], SiteCalls]
"""By the user's line, what was called, and the frames of a library that called it."""

Span = tuple[str, int, int]
"""Stage, start and end by `time.perf_counter_ns`."""


@dataclass(kw_only=True, slots=True)
class Batches:
    num_fetches: int = 0
    samples: int = 0
    num_elements: int = 0
    loaders: list[int | None] = field(default_factory=list)
    """Of each batch that was asked for: the number of its DataLoader."""
    _unused: int = 0
    """Samples of the last batch, which nothing was done with so far."""
    _aside: int = 0
    """Samples of the last batch, which fed an evaluation and is not counted, unless it is trained on as well."""

    @property
    def loader(self) -> int | None:
        return next((loader for loader in reversed(self.loaders) if loader is not None), None)

    def add(self, batch: object) -> None:
        self.num_fetches += 1
        self.num_elements += num_elements((batch,))
        self._unused, self._aside = num_samples(batch), 0
        self.samples += self._unused

    def set_aside(self) -> None:
        """The last batch may be there to be evaluated."""
        self.samples -= self._unused
        self._unused, self._aside = 0, self._aside + self._unused

    def train_on_last(self) -> None:
        self.samples += self._aside
        self._unused = self._aside = 0


@dataclass(kw_only=True, slots=True)
class OpenStep:
    """The step that is being recorded; times are `time.perf_counter_ns` unless they say otherwise."""

    number: int
    start_ns: int
    epoch_ns: int
    start_cpu_ns: int = 0
    recorder_ns: int = 0
    is_light: bool = False
    """Whether no more of it is to be seen than what belongs to a light step."""
    spans: list[Span] = field(default_factory=list)
    device_marks: list[tuple[Any, Any]] = field(default_factory=list)
    """For each of the last spans, the CUDA events at its start and its end."""
    memory: list[tuple[str, int, tuple[int, ...]]] = field(default_factory=list)
    """Boundary, when, and what `Memory.read` gave."""
    batches: Batches = field(default_factory=Batches)
    reads: Calls = field(default_factory=dict)
    stalls: Calls = field(default_factory=dict)
    numbers: StepNumbers = field(default_factory=StepNumbers)
    stepped: list[int] = field(default_factory=list)
    skipped: tuple[int, ...] = ()
    """Those that a gradient scaler did not let step."""
    num_backwards: int = 0
    num_gradient_calls: int = 0
    """Of `torch.autograd.grad`, outside of every stage."""
    has_forward: bool = False
    num_elements: int = 0
    """Of what the outermost modules were given."""
    has_evaluation: bool = False
    has_pause: bool = False
    """Whether an evaluation lies within it that was not seen to be one when it began."""
    sequence: int | None = None
    """Autograd's number as the first forward pass began."""
    backward_site: str | None = None
    window: str | None = None
    late: list[Callable[[], bool]] = field(default_factory=list)
    """Each fills in numbers that the device still owes the record, and returns whether they have arrived."""

    @property
    def has_gradients(self) -> bool:
        return self.num_backwards > 0 or self.num_gradient_calls > 0


def count_call(calls: Calls, site: str | None, call: str, spent_ns: int, library: tuple[str, ...] = ()) -> None:
    """Nothing where no line of the user's led to it."""
    if site is not None:
        first = SiteCalls(site=site, call=call, count=0, us=0.0, library=library)
        called = calls.setdefault((site, call, library), first)
        called.count += 1
        called.us += spent_ns / 1000


def record_of(step: OpenStep, end_ns: int, cpu_ns: int, resident_bytes: int) -> StepRecord:
    start = step.start_ns
    return StepRecord(
        step=step.number,
        started_ns=step.epoch_ns,
        total_us=(end_ns - start) / 1000,
        spans=[
            StageSpan(stage, max(0, began - start) / 1000, max(0, end - start) / 1000)
            for stage, began, end in step.spans
        ],
        memory=[BoundaryMemory(name, max(0, at - start) / 1000, *sizes) for name, at, sizes in step.memory],
        cpu_us=cpu_ns / 1000,
        rss_bytes=resident_bytes,
        micro_batches=step.num_backwards or step.num_gradient_calls,
        samples=step.batches.samples,
        num_elements=step.num_elements or step.batches.num_elements,
        recorder_us=step.recorder_ns / 1000,
        reads=list(step.reads.values()),
        stalls=list(step.stalls.values()),
        learning_rate=step.numbers.learning_rate,
        is_skipped=bool(step.skipped),
        backward_site=step.backward_site,
        loader=step.batches.loader,
        sequence=step.sequence,
        window=step.window,
        has_pause=step.has_pause,
    )


def add_passes(record: StepRecord, passes: list[tuple[float, float]]) -> None:
    """The stage `backward` of other threads, in us since the step began, where its own was in no stage."""
    for began, end in passes:
        began = max(0, began)
        for span in sorted(record.spans, key=lambda span: span.start_us):
            if began < min(span.start_us, end):
                record.spans.append(StageSpan("backward", began, min(span.start_us, end)))
            began = max(began, span.end_us)
        if began < end:
            record.spans.append(StageSpan("backward", began, end))
    record.spans.sort(key=lambda span: span.start_us)


def num_elements(given: Iterable[object]) -> int:
    """Of the tensors among them, and of those in a list or dict among them.

    Not while torch.jit.trace takes the question for the program's, and answers with a tensor.
    """
    if torch._C._get_tracing_state() is not None:
        return 0
    total = 0
    for value in given:
        items = (value,) if type(value) is torch.Tensor else items_of(value)
        total += sum(item.numel() for item in islice(items, MAX_ITEMS) if type(item) is torch.Tensor)
    return total


def num_samples(batch: object) -> int:
    """The first dimension of the first tensor found in a batch; 0 where there is none."""
    if is_tensor(batch):
        return batch.shape[0] if batch.dim() else 1
    items = [*items_of(batch)]
    if issubclass(type(batch), list) and len(items) == 1 and issubclass(type(items[0]), dict):
        items = [*items_of(items[0])]  # DALI's; or of one picture
        items = items if all(map(is_tensor, items)) else []
    return next((num_samples(item) for item in items if is_tensor(item)), 0)
