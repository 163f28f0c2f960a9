"""events.jsonl: what happened now and then, one tagged object per line."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import msgspec

from efprof.artifacts.files import read_lines
from efprof.artifacts.hunts import StartState
from efprof.artifacts.memory_messages import REQUEST
from efprof.model import RecorderPart
from efprof.units import parse_bytes

EVENTS_FILE = "events.jsonl"

WHOLE_RECORDING = "recording"
"""What stops where the disk refuses; a collector's name otherwise."""


class Event(msgspec.Struct, kw_only=True, tag_field="kind"):
    """Each kind is a class below; made when it happens, unless it says when."""

    at_ns: int = msgspec.field(default_factory=time.time_ns)
    step: int


E = TypeVar("E", bound=Event)


class LoaderBuilt(Event, tag="loader_built"):
    """A DataLoader was constructed at `site` (`file:line:function`), or, where it was before, is first used there."""

    loader: int
    site: str | None
    num_workers: int
    batch_size: int | None
    persistent_workers: bool
    num_batches: int | None


class StartKept(Event, tag="start_kept"):
    """What random numbers began with, when torch had just been imported."""

    state: StartState


class ScalerBuilt(Event, tag="scaler_built"):
    """A gradient scaler that is enabled was made at `site`, None where nobody saw it; its settings are those then."""

    site: str | None
    init_scale: float
    growth_interval: int


class WindowOpened(Event, tag="window_opened"):
    """A costly collector was turned on before this step."""

    window: str
    why: str


class WindowClosed(Event, tag="window_closed"):
    """It was turned off after this step; `seconds` is what starting, stopping and writing took."""

    window: str
    seconds: float
    files: list[str]


class WindowLeftOut(Event, tag="window_left_out"):
    """A window with lines was to open at this step, too large or too dear: one step of it has so many events."""

    num_events: int
    seconds: float
    """Of CPU time, as reckoned, that it would take."""
    has_more: bool = False
    """Whether the step has more events than were counted, and takes longer."""


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


class BadParameter(msgspec.Struct, kw_only=True):
    """The first parameter that was not finite when a loss was not, and its optimizer, which has this `eps`.

    Where that `has_finite_state`, a running value is finite where the parameter is not: so were its gradients.
    """

    name: str
    dtype: str
    num_bad: int
    num_elements: int
    optimizer: str
    eps: float | None = None
    has_finite_state: bool = False


class NumbersUnread(Event, tag="numbers_unread"):
    """The `losses` or `gradients` are tensors of this `type`, whose values the recorder does not read."""

    what: str
    type: str


class NonFiniteSeen(Event, tag="nonfinite_seen"):
    """A loss or gradient was NaN or Inf; `site` is the line that called backward or the optimizer.

    One that `is_late` was told by a device when backward had freed the graph: no suspects were looked for. `parameter`
    was not finite before the forward pass.
    """

    what: str
    value: str
    site: str | None
    suspects: list[SuspectOperation] = []
    is_late: bool = False
    parameter: BadParameter | None = None


class OutOfMemory(Event, tag="out_of_memory"):
    """The exception that ended the run said that memory ran out.

    `requested_bytes` is the request that failed; None where the message does not tell, as Python's own never does.
    `is_for_tensor` is false of a `MemoryError`, Python's and NumPy's: torch's allocators raise others.
    """

    message: str
    site: str | None
    requested_bytes: int | None = None
    is_for_tensor: bool = True

    def __post_init__(self) -> None:
        request = REQUEST.search(self.message)
        if self.requested_bytes is None and request is not None:
            with suppress(ValueError):  # more than any memory
                self.requested_bytes = parse_bytes(request[1].replace("bytes", "B"))


class DeviceOutOfMemory(Event, tag="device_shortage"):
    """Requests that CUDA's allocator could not serve, most of which a program survives: the first, and at the end all.

    `num_failed` there were; the fields before it are of the last of them, as the allocator told it, in bytes that it
    asked the driver for. `num_rejected` more it refused itself, as `throw_on_cudamalloc_oom` has it, and only counts.
    """

    device: int | None = None
    requested_bytes: int | None = None
    free_bytes: int | None = None
    num_failed: int = 0
    num_rejected: int = 0


class TrainingRaised(Event, tag="training_raised"):
    """The exception that ended the run, with the user's lines of its traceback, outermost first."""

    error: str
    message: str
    stage: str | None
    sites: list[str]
    recorder_part: RecorderPart = "possible"


class TrainingStopped(Event, tag="training_stopped"):
    """The recorder ended it after as many steps as were asked for."""


class StepInterrupted(Event, tag="step_interrupted"):
    """The run ended within this step, in `stage`, at this memory.

    `peak_bytes` is the most that the CUDA allocator had in use, since the program reset that mark last.
    """

    stage: str
    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int | None = None


class CollectorStopped(Event, tag="collector_stopped"):
    """A collector met an error and was turned off; training went on. `WHOLE_RECORDING` where it was all of them."""

    collector: str
    reason: str


class RecordingEnded(Event, tag="recording_ended"):
    """The recorder closed in good order, before the program ended; `signal` names what ended the program, if one did.

    Where a rank has no such event, it was killed without notice.
    """

    signal: str | None = None


class RecordingCost(Event, tag="recording_cost"):
    """Seconds by what they were spent on; it may cost `allowance_s` at the start, then a `share` of the time."""

    allowance_s: float
    share: float
    seconds: dict[str, float]
    num_full_steps: int

    @property
    def beside_steps_s(self) -> float:
        """What windows, counts and the like took."""
        return sum(spent for what, spent in self.seconds.items() if not what.endswith("steps"))


class StepsWithoutOptimizer(Event, tag="steps_without_optimizer"):
    """Parameters changed though no torch optimizer stepped: steps end where the program goes on after such a change."""


class OtherThreadTrained(Event, tag="other_thread_trained"):
    """A thread that is not recorded trained too: written at its first update, and at the end with their number."""

    num_updates: int | None = None


class HoldersCounted(Event, tag="census"):
    """The holders of tensors were counted."""

    file: str
    seconds: float


class GradientClearing(Event, tag="gradient_clearing"):
    """What became of an optimizer's gradients between its steps.

    `cleared`: they were gone; `kept`: neither gone nor changed before `num_steps` of its steps, each after backward
    passes that added to them; `changed`, which older runs tell of: in place, by whom nobody knows. `backward_sites`,
    `num_earlier_backwards` and `step_site` tell of the last of these steps: the lines of the passes before it, in
    order; so many more came before another optimizer's step. Before `num_cleared` other steps, all of which followed
    passes of other lines, they were cleared.
    """

    optimizer: str
    outcome: Literal["cleared", "changed", "kept"]
    num_steps: int
    backward_sites: list[str] = []
    num_earlier_backwards: int = 0
    step_site: str | None = None
    num_cleared: int = 0


class Compilation(Event, tag="compilation"):
    """`torch.compile` compiled `function` as `site` was run; `reason` is the guard that failed of what it had made."""

    function: str
    site: str | None
    seconds: float
    reason: str | None = None


class OptimizerBuilt(Event, tag="optimizer_built"):
    """An optimizer was built at `site`; of the same `number`, a later event replaces it.

    `num_lost` of its parameters had state in another of its class, for exactly these parameters, and `load_state_dict`
    did not give this one that state.
    """

    number: int
    site: str | None
    optimizer: str
    num_parameters: int
    num_lost: int = 0


class DuplicatedLog(Event, tag="duplicated_log"):
    """Of `num_records` log records so far, `num_doubled` were written to one stream or file more than once.

    Most of these were logged at `site`; `added` are lines that added the handlers, the latest first. A later event
    replaces it.
    """

    site: str | None = None
    num_records: int = 0
    num_doubled: int = 0
    added: list[str] = []


class ScheduleBuilt(Event, tag="schedule_built"):
    """A schedule of learning rates, of this class, was built at `site`."""

    site: str | None
    schedule: str


class UntrainedParameters(msgspec.Struct, kw_only=True):
    """Parameters that no update changes, with the first of their names; an optimizer that was built at `site`.

    `not_optimized` or, of modules in evaluation mode, `helper`: they had gradients, of `gradient_bytes`, in two steps,
    and that optimizer, which has most of what the loss was made from, does not have them, nor has another.
    `no_gradient`: that one has them, and they had no gradient in its first updates; where they were `replaced`, no
    module has them either.
    """

    why: Literal["not_optimized", "helper", "no_gradient", "replaced"]
    names: list[str]
    num_parameters: int
    num_elements: int
    optimizer: str
    site: str | None
    gradient_bytes: int = 0


class ParametersSeen(Event, tag="parameters_seen"):
    """What two steps computed gradients for, and what of it is not trained; a later event replaces it."""

    num_parameters: int = 0
    num_elements: int = 0
    untrained: list[UntrainedParameters] = []


class GradientClips(Event, tag="gradient_clips"):
    """Calls of `clip_grad_norm_` or `clip_grad_value_` at `site`, in full steps so far; a later one replaces it.

    In `num_late` of them the gradients were those that the optimizer had stepped with before, at `step_site`; in
    `num_empty` there were none. `limit` is the last one's, None where it is no number.
    """

    site: str
    num_calls: int = 0
    num_late: int = 0
    num_empty: int = 0
    limit: float | None = None
    step_site: str | None = None


class StepCounter(Event, tag="step_counter"):
    """A whole number called `name` in the function at `site`, or of its `self`, that grew by `by` in most updates."""

    site: str
    name: str
    by: int
    num_updates: int
    num_alike: int


class ScaledClips(Event, tag="scaled_clips"):
    """Updates by a gradient scaler at `step_site` whose gradients were clipped at `site`; a later one replaces it.

    In `num_scaled` of them the gradients were still multiplied by a `scale` above one and above the `limit`, both as
    they were last. `is_varied` says that the limit was not always the same.
    """

    site: str
    step_site: str | None
    unscale_site: str | None = None
    """Where the program unscales them, if it does, only after that."""
    num_updates: int = 0
    num_scaled: int = 0
    limit: float = 0.0
    scale: float = 1.0
    is_varied: bool = False


class DiscardedPasses(Event, tag="discarded_passes"):
    """Updates that followed a backward pass at `site`, in full steps so far; a later one replaces it.

    Before `num_discarding` of `num_updates`, gradients of passes at this line were cleared as the next began: of
    `num_passes` there, `num_discarded`. In `num_rewritten` of these updates, something else than clipping or a scaler
    had written to the gradients of the last pass.
    """

    site: str
    step_site: str | None = None
    num_updates: int = 0
    num_discarding: int = 0
    num_passes: int = 0
    num_discarded: int = 0
    num_rewritten: int = 0


class ScheduleMoves(Event, tag="schedule_moves"):
    """How often a schedule of the learning rate, of this class, moved on at `site`.

    In `num_updates`, all of whose backward passes were seen, `num_moves` times; in `num_drifting` of these, ahead of
    more than one of the passes. It is to end after `length` moves, as its setting `length_name` says; None where that
    is not known. Of the same `number`, a later event replaces it.
    """

    number: int
    schedule: str
    site: str | None
    length: int | None = None
    length_name: str = ""
    num_updates: int = 0
    num_drifting: int = 0
    num_moves: int = 0


class TrainedAsEvaluated(Event, tag="trained_as_evaluated"):
    """Updates of a module of this class whose `num_layers` layers of these `kinds` were in evaluation mode.

    `num_evaluated` of `num_updates` seen, from `step` on the last `num_last` of these; `num_entries` times they
    followed one in training mode. A later event of the module replaces it. `site` is the line that put it into that
    mode last, if that was seen, `backward_site` that of the first of the last of these updates.
    """

    module: str
    kinds: list[str]
    num_layers: int
    site: str | None
    backward_site: str | None
    num_updates: int = 0
    num_evaluated: int = 0
    num_last: int = 0
    num_entries: int = 0


class BackwardCalls(Event, tag="backward_calls"):
    """What was seen so far of the calls of backward at `site`, in steps recorded in full; a later one replaces it.

    `num_retained` of them were told to keep their graph, `num_created` by `create_graph=True`. Of those `num_watched`
    graphs were watched, up to the step `last_watched_step`, which had `kept_bytes` at most: `num_released` are gone,
    `num_released_later` of them in a later step than their own, and `num_run_again` were gone through once more.
    `num_cycles` leaves, no parameters, lived on at once, each with a gradient that has a graph; `leaf` is what the
    program calls one.
    """

    site: str
    num_calls: int = 0
    num_retained: int = 0
    num_created: int = 0
    num_watched: int = 0
    last_watched_step: int = -1
    num_released: int = 0
    num_released_later: int = 0
    num_run_again: int = 0
    kept_bytes: int = 0
    num_cycles: int = 0
    leaf: str | None = None


class DeviceTensor(msgspec.Struct, kw_only=True):
    """The storage of a tensor on a device, and what was read of it in the steps that were looked at.

    `taken_bytes` in all of them. `is_varied` says that not always the same stretch was read, `is_written` that
    something wrote to it. `sites` are the lines that took parts of it, or read it.
    """

    address: int
    num_bytes: int
    taken_bytes: int
    is_varied: bool
    is_written: bool
    sites: list[str]


class DeviceData(Event, tag="device_data"):
    """What `num_steps` steps used of tensors on a device that were no part of a model; or `why_not`: nobody looked."""

    num_steps: int
    tensors: list[DeviceTensor]
    why_not: str = ""


class ThreadsReady(Event, tag="threads_ready"):
    """How many threads of this process and its children were `ready` at a time since the event before, as Linux counts.

    They ran, or were `waiting` for a core; those of `children` count in both. `cores` names the machine and the cores
    that the process may run on, for `num_cores` of time at once. torch cuts an operation into `num_threads`, which the
    user's line `site` set last; None where none did. `busy`, with all programs and other virtual machines, and
    `own`, with this process and its children, are shares of these cores' time since the first reading.
    `throttled_periods` is the share of the periods of a container's limit in which that held them back.
    """

    cores: str
    num_cores: int
    num_threads: int
    site: str | None
    ready: float
    waiting: float
    children: float
    children_waiting: float = 0.0
    busy: float = 0.0
    own: float = 0.0
    throttled_periods: float = 0.0


ANOMALY = "anomaly detection"


class SampledPlace(msgspec.Struct, array_like=True):
    """How long the training thread was at a line of the user's, in one stage; in a library's Python below it or not.

    `function` is what the line calls then, with its module. Of no library are Python's own modules and NumPy.
    ANOMALY where that formats a stack, whatever the line calls.
    """

    site: str
    stage: str
    is_in_library: bool
    us: float
    function: str = ""


class TrainingSampled(Event, tag="training_sampled"):
    """Where the training thread was in full steps outside of windows, by samples so far; a later one replaces it.

    `total_us` they stand for in all, with those at no line of the user's.
    """

    num_samples: int
    total_us: float
    lines: list[SampledPlace]


"""So say torch's allocators, the third is `cudaMallocAsync`'s, and NumPy's; CUDA's and NumPy's round to two digits."""


def events_of(rank_folder: Path, kind: type[E]) -> list[E]:
    """Those of one kind, in order."""
    return [event for event in read_events(rank_folder)[0] if isinstance(event, kind)]


def read_events(rank_folder: Path) -> tuple[list[Event], int]:
    """All whole lines of events.jsonl in order, and how many were torn or unknown."""
    path = rank_folder / EVENTS_FILE
    if not path.exists():
        return [], 0
    kinds: Any = Union[tuple(Event.__subclasses__())]  # noqa: UP007  # of as many as there are
    return read_lines(path, kinds, "record the run with 'efprof record -- COMMAND'.")
