"""steps.jsonl: one line per step that was recorded in full, one for several light ones between them."""

from collections.abc import Iterable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from efprof.artifacts.files import read_lines

STEPS_FILE = "steps.jsonl"
MAX_FRAMES = 5
"""Of a library that are kept of a call: Lightning reads a metric four calls below what its settings turn off."""


class SiteCalls(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Calls at one line that copy values to Python, or make a step wait (`torch.cuda.empty_cache`); `us` in all.

    Where the line calls a library that makes them, `library` has the library's frames, the innermost first:
    `package/file.py:line:function`.
    """

    site: str
    call: str
    count: int
    us: float
    library: tuple[str, ...] = ()


class StageSpan(msgspec.Struct, array_like=True, gc=False):
    """One stretch of a stage, microseconds from the step's start.

    `device_us` is the time between its start and its end on the device's current stream, by CUDA events, each of which
    the device passes when it has done what was queued before; None where there is no CUDA.
    """

    stage: str
    start_us: float
    end_us: float
    device_us: float | None = None


class BoundaryMemory(msgspec.Struct, array_like=True, gc=False):
    """Memory at one boundary, `at_us` microseconds from the step's start.

    The CUDA allocator alone tells of active bytes (allocated, or freed and waited for by a stream), of inactive
    bytes in split blocks, how often it emptied its cache to try again, and how much it had reserved at most so far.
    """

    boundary: str
    at_us: float
    allocated_bytes: int
    reserved_bytes: int
    active_bytes: int | None = None
    inactive_split_bytes: int | None = None
    num_retries: int | None = None
    peak_reserved_bytes: int | None = None


class StepRecord(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """One step, its micro-batches included. Sites are written `file:line:function`.

    `started_ns` is on the epoch's clock, as are a profiler window's events; `cpu_us` is CPU time of the whole process;
    `loss` is the sum, over the step's calls of backward, of each loss of one element times the gradient that
    `Tensor.backward` was given for it, 1 where it was given none, and as it was before a gradient scaler, NaN and Inf
    spelled as strings; `num_elements` are those of the tensors that the outermost modules were given by position, else
    those of the batches, 0 where neither is known; `gradient_norm` is missing where it is known of some of the step's
    optimizers only; `sequence` is autograd's sequence number at the start of the forward pass; `is_skipped` says that
    an optimizer was skipped since gradients were not finite; `window` names the costly collector that was on;
    `recorder_us` is the recorder's own time within `total_us`; `device_us` is the time from its first span's start to
    its own end as a span has it.

    Of a light step, which is not `is_full`, no more is known than its loss, its number of micro-batches, and its length
    from the update before to its own; the site and the loader are those of the full step before. One that `has_pause`
    may have had something else within it, such as an evaluation.
    """

    step: int
    started_ns: int
    total_us: float
    spans: list[StageSpan] = []
    memory: list[BoundaryMemory] = []
    cpu_us: float = 0.0
    rss_bytes: int = 0
    micro_batches: int
    samples: int = 0
    recorder_us: float
    loss: float | str | None = None
    gradient_norm: float | str | None = None
    num_gradients: int | None = None
    gradient_bytes: int | None = None
    num_nan: int | None = None
    num_inf: int | None = None
    scaler_scale: float | None = None
    is_skipped: bool = False
    learning_rate: float | None = None
    reads: list[SiteCalls] = []
    stalls: list[SiteCalls] = []
    backward_site: str | None = None
    loader: int | None = None
    sequence: int | None = None
    window: str | None = None
    device_us: float | None = None
    is_full: bool = True
    has_pause: bool = False
    num_elements: int = 0

    def allocated(self, boundary: str | None = None) -> list[int]:
        """Bytes at each of its boundaries in order, or each time that it came to one of them."""
        return [here.allocated_bytes for here in self.memory if boundary in (None, here.boundary)]

    def records(self) -> Iterable["StepRecord"]:
        """This one: a line of another kind has several."""
        return (self,)


IS_SKIPPED = 1
"""A gradient scaler held the update back."""
HAS_PAUSE = 2
"""Something else ran within the step: a loader started, as for an evaluation, or holders were counted."""


class LightLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Light steps in a row, in one line: of each its number, its start in ns of the epoch, its length in us, how many
    micro-batches it had, its loss as in a StepRecord, and the sum of what holds of it: IS_SKIPPED, HAS_PAUSE.

    The recorder took `recorder_us` of each.
    """

    light: list[tuple[int, int, float, int, float | str | None, int]]
    recorder_us: float
    backward_site: str | None = None
    loader: int | None = None

    def records(self) -> Iterator[StepRecord]:
        for number, started_ns, length_us, num_passes, loss, flags in self.light:
            yield StepRecord(
                step=number,
                started_ns=started_ns,
                total_us=length_us,
                micro_batches=num_passes,
                recorder_us=self.recorder_us,
                loss=loss,
                is_skipped=bool(flags & IS_SKIPPED),
                has_pause=bool(flags & HAS_PAUSE),
                backward_site=self.backward_site,
                loader=self.loader,
                is_full=False,
            )


class AlikeSteps(msgspec.Struct, kw_only=True):
    """Of recordings of schema version 1: short steps that made the same calls, in one line.

    A row of `alike` has a step's number, its start in ns of the epoch, start and end in ns by the process's own clock,
    samples, number of losses, a sequence number, the losses' sum (null where that is no number), the gradients' norm,
    a learning rate, and the instants that begin and end the `stages`. The steps share their CPU time by their lengths.
    """

    alike: list[tuple[Any, ...]]
    stages: list[tuple[str, int, int]]
    cpu_share: float
    rss_bytes: int
    recorder_us: float
    backward_site: str | None = None
    loader: int | None = None

    def records(self) -> Iterator[StepRecord]:
        """Each of the steps; raises ValueError, TypeError or IndexError where a row is not one."""
        for number, epoch_ns, start, end, samples, num_losses, _, loss, norm, rate, *instants in self.alike:
            yield StepRecord(
                step=int(number),
                started_ns=int(epoch_ns),
                total_us=(end - start) / 1000,
                spans=[
                    StageSpan(stage, (instants[begin] - start) / 1000, (instants[last] - start) / 1000)
                    for stage, begin, last in self.stages
                ],
                cpu_us=self.cpu_share * (end - start) / 1000,
                rss_bytes=self.rss_bytes,
                micro_batches=sum(stage == "backward" for stage, _, _ in self.stages),
                samples=samples,
                recorder_us=self.recorder_us,
                loss=None if not num_losses else "nan" if loss is None else loss,
                gradient_norm=norm,
                learning_rate=rate,
                backward_site=self.backward_site,
                loader=self.loader,
            )


def read_steps(rank_folder: Path) -> tuple[list[StepRecord], int]:
    """All steps, and the number of torn lines. Of two lines of a step the later is whole: the device tells late."""
    how_to_record = "record the run with 'efprof record -- COMMAND'."
    lines: list[StepRecord | LightLine | AlikeSteps]
    lines, num_torn = read_lines(rank_folder / STEPS_FILE, StepRecord, how_to_record, LightLine, AlikeSteps)
    records: dict[int, StepRecord] = {}
    for line in lines:
        try:
            records |= {record.step: record for record in line.records()}
        except (ValueError, TypeError, IndexError):
            num_torn += 1
    return sorted(records.values(), key=lambda record: record.step), num_torn


def spelled(value: float | None) -> float | str | None:
    """JSON has no NaN and no Inf: they are spelled out."""
    return value if value is None or isfinite(value) else str(value)
