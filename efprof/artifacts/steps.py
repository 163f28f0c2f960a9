"""steps.jsonl: one line per step of the main loop."""

from pathlib import Path

import msgspec

from efprof.artifacts.lines import read_lines

STEPS_FILE = "steps.jsonl"


class ScalarReads(msgspec.Struct, kw_only=True):
    """Calls at one line that copied tensor values to Python; `us` is the time spent inside them."""

    site: str
    call: str
    count: int
    us: float


class StageSpan(msgspec.Struct, array_like=True):
    """One stretch of a stage, microseconds from the step's start."""

    stage: str
    start_us: float
    end_us: float


class BoundaryMemory(msgspec.Struct, array_like=True):
    """Memory at one boundary, `at_us` microseconds from the step's start."""

    boundary: str
    at_us: float
    allocated_bytes: int
    reserved_bytes: int


class StepRecord(msgspec.Struct, kw_only=True):
    """One step, its micro-batches included. Sites are written `file:line:function`.

    `started_ns` is on the epoch's clock, as are a profiler window's events; `loss` is the sum of the scalars
    that backward was called on in the step, NaN and Inf spelled as strings; `sequence` is autograd's sequence
    number at the start of the forward pass; `is_skipped` says that gradients were not finite and the optimizer was
    held back; `window` names the costly collector that was on; `recorder_us` is
    the recorder's own time within `total_us`.
    """

    step: int
    started_ns: int
    total_us: float
    spans: list[StageSpan]
    memory: list[BoundaryMemory]
    cpu_us: float
    rss_bytes: int
    micro_batches: int
    samples: int
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
    reads: list[ScalarReads] = []
    backward_site: str | None = None
    loader: int | None = None
    sequence: int | None = None
    window: str | None = None


def read_steps(rank_folder: Path) -> tuple[list[StepRecord], int]:
    """All whole lines of steps.jsonl in order, and how many were torn."""
    return read_lines(rank_folder / STEPS_FILE, StepRecord, "record the run with 'efprof record -- COMMAND'.")
