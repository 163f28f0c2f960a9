"""events.jsonl: what happened now and then, one tagged object per line."""

from pathlib import Path

import msgspec

from efprof.artifacts.lines import read_lines

EVENTS_FILE = "events.jsonl"

WHOLE_RECORDING = "recording"
"""What stops where the disk refuses; a collector's name otherwise."""


class _Event(msgspec.Struct, kw_only=True, tag_field="kind"):
    at_ns: int
    step: int


class LoaderBuilt(_Event, tag="loader_built"):
    """A DataLoader was constructed at `site` (`file:line:function`)."""

    loader: int
    site: str | None
    num_workers: int
    batch_size: int | None
    persistent_workers: bool
    prefetch_factor: int | None
    pin_memory: bool
    num_batches: int | None


class WindowOpened(_Event, tag="window_opened"):
    """A costly collector was turned on before this step."""

    window: str
    why: str


class WindowClosed(_Event, tag="window_closed"):
    """It was turned off after this step; `seconds` is what starting, stopping and writing took."""

    window: str
    seconds: float
    files: list[str]


class SuspectOperation(msgspec.Struct, kw_only=True):
    """The autograd node in which a non-finite value was born, by walking the graph before backward freed it.

    `offset` is its sequence number less the one at the start of the step's forward pass; `operand` says what
    about its input made it non-finite, `num_bad` of `num_elements` of them.
    """

    node: str
    offset: int
    operand: str
    num_bad: int
    num_elements: int
    dtype: str


class NonFiniteSeen(_Event, tag="nonfinite_seen"):
    """A loss or gradient was NaN or Inf; `site` is the line that called backward or the optimizer."""

    what: str
    value: str
    site: str | None
    suspects: list[SuspectOperation] = []


class OutOfMemory(_Event, tag="out_of_memory"):
    """The exception that ended the run said that memory ran out."""

    message: str
    site: str | None


class TrainingRaised(_Event, tag="training_raised"):
    """The exception that ended the run, with the user's lines of its traceback, outermost first."""

    error: str
    message: str
    stage: str | None
    sites: list[str]


class StepInterrupted(_Event, tag="step_interrupted"):
    """The run ended within this step, in `stage`, at this memory."""

    stage: str
    allocated_bytes: int
    reserved_bytes: int


class CollectorStopped(_Event, tag="collector_stopped"):
    """A collector met an error and was turned off; training went on. `WHOLE_RECORDING` where it was all of them."""

    collector: str
    reason: str


class Census(_Event, tag="census"):
    """Memory had grown for a while, so the holders of tensors were counted."""

    file: str
    seconds: float


Event = (
    LoaderBuilt
    | WindowOpened
    | WindowClosed
    | NonFiniteSeen
    | OutOfMemory
    | TrainingRaised
    | StepInterrupted
    | CollectorStopped
    | Census
)


def read_events(rank_folder: Path) -> tuple[list[Event], int]:
    """All whole lines of events.jsonl in order, and how many were torn or unknown."""
    path = rank_folder / EVENTS_FILE
    if not path.exists():
        return [], 0
    return read_lines(path, Event, "record the run with 'efprof record -- COMMAND'.")  # type: ignore[arg-type]
