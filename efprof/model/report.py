"""Everything one run's page, terminal summary and JSON are rendered from."""

import statistics
from dataclasses import dataclass
from typing import Literal

from efprof.model.data import frozen_dataclass
from efprof.model.evidence import Evidence, Series, Table
from efprof.model.finding import AuditResult, SourceLine

STAGES = ("data", "forward", "backward", "optimizer", "other")

BOUNDARIES = (
    "pre_forward",
    "post_forward_pre_backward",
    "pre_backward",
    "post_backward",
    "post_optimizer_step",
)
"""The instants between the parts of a training step, in the order they come."""
BOUNDARY_PHRASES = {
    "pre_forward": "before forward",
    "post_forward_pre_backward": "after forward",
    "pre_backward": "before backward",
    "post_backward": "after backward",
    "post_optimizer_step": "after the optimizer's step",
}
"""What people read instead."""


@frozen_dataclass
class Metric:
    """A quantity with its raw samples (one per step); smaller is better for every one of them.

    `unit` is a base unit (`ms`, `bytes`, `bytes_per_step`, `count`). `budget` is the relative worsening that
    a comparison allows before it fails; None for a metric that is shown and never gates.
    """

    name: str
    label: str
    unit: str
    samples: tuple[float, ...]
    budget: float | None = None


@dataclass(kw_only=True, slots=True)  # to freeze 200,000 of them takes 0.3 s
class StepSample:
    """One step of the main loop: where its time went, in milliseconds, and how the numbers fared.

    Of a light step no stage is known: `stage_ms` is empty. `started_s` counts from the first recorded step. `loss`,
    `gradient_norm`, `scaler_scale` are None where they were not seen. `is_in_window` marks steps slowed by a costly
    collector: left out of statistics.
    """

    step: int
    started_s: float
    total_ms: float
    stage_ms: tuple[float, ...]
    is_in_window: bool
    is_slow: bool
    num_micro_batches: int
    samples: int
    loss: float | None
    gradient_norm: float | None
    num_gradients: int | None
    gradient_bytes: int | None
    num_nan: int | None
    num_inf: int | None
    scaler_scale: float | None


@frozen_dataclass
class MemorySample:
    """Memory at one boundary of one step, in bytes; `at_s` counts from the first recorded step."""

    step: int
    boundary: str
    at_s: float
    allocated_bytes: int
    reserved_bytes: int


@frozen_dataclass
class StageDelta:
    """Allocated memory at one boundary over all steps, in bytes; deltas are against the boundary before it."""

    boundary: str
    count: int
    average_bytes: float
    maximum_bytes: int
    average_delta_bytes: float
    largest_jump_bytes: int
    largest_jump_step: int


@frozen_dataclass
class StallLine:
    """A line whose call of `call` makes steps wait: averages over the steps.

    Where a library makes the call, `library` has its frames, the innermost first.
    """

    blame: SourceLine
    call: str
    count_per_step: float
    step_ms: float
    library: tuple[str, ...] = ()


@frozen_dataclass
class LineTime:
    """A line of the user's, or a function outside of its calls, in milliseconds per step."""

    blame: SourceLine
    is_function: bool
    host_ms: float
    device_ms: float


@frozen_dataclass
class Timeline:
    """The raw samples behind the page's pictures."""

    steps: tuple[StepSample, ...] = ()
    memory: tuple[MemorySample, ...] = ()
    windows: tuple[tuple[int, int, str], ...] = ()
    """(first step, last step, what was recorded) of each window."""


@frozen_dataclass
class Evaluation:
    """Forward passes in a row that no backward pass used, after `after_step` (-1 where they came before every step).

    `peak_bytes` is the highest reading, after a forward pass unless `is_peak_exact`. `kept_bytes_per_batch` is what
    each batch leaves behind, None where memory does not rise steadily. `graph_bytes` is what the graph of one adds,
    None where none is built, and `num_graphs` how many there were at a time. In a rollout a policy acts.
    """

    after_step: int
    total_ms: float
    num_batches: int
    blame: SourceLine | None
    peak_bytes: int
    is_peak_exact: bool
    kept_bytes_per_batch: float | None
    loop: SourceLine | None
    graph_bytes: int | None
    num_graphs: int
    is_rollout: bool


@frozen_dataclass
class Overhead:
    """What recording cost: the recorder's own time inside the steps, measured in the run itself.

    `step_ms` is the mean per step after warm-up and outside windows, since some steps pay for others; `share` is that
    over the median step; `window_s` is the time that windows took to start, stop and write. The recording might cost
    `allowance_s` at the start and then `allowed_share` of the time; `beside_steps_s` is what windows, counts and the
    like took of it in all. These are None of a recording that did not end in good order.
    """

    step_ms: float
    share: float
    window_s: float
    num_windows: int
    num_full_steps: int
    num_steps: int
    allowance_s: float | None
    allowed_share: float | None
    beside_steps_s: float | None = None


@frozen_dataclass
class Measurements:
    """What is shown of every run, findings or none."""

    metrics: tuple[Metric, ...] = ()
    timeline: Timeline = Timeline()
    stage_deltas: tuple[StageDelta, ...] = ()
    overhead: Overhead | None = None
    memory_source: str
    """What `allocated` means here: the CUDA allocator, the C allocator, or the resident set."""
    run_time: tuple[tuple[str, float], ...] = ()
    """What the run's wall time went to, and for how many seconds: they add up to its duration."""
    num_skipped_steps: int = 0
    recommendations: tuple[str, ...] = ()
    stalls: tuple[StallLine, ...] = ()
    time: tuple[Evidence, ...] = ()
    """Where the time of a step goes, by what a profiler window or a trace shows."""
    lines: tuple[LineTime, ...] = ()
    """Those that a window or a trace shows to take at least 0.2 % of a step, the longest first."""
    time_sentence: str = ""
    """What bounds the step, and the lines that most of it goes to."""
    is_inference: bool = False
    """Of a trace from elsewhere: no backward pass and no optimizer runs in it."""
    memory_sentence: str = ""
    """Who has what of a device when most is reserved, by a snapshot of its allocator."""
    next_experiment: str = ""
    """What to try where nothing is wrong, to make the step shorter all the same."""
    hta: tuple[Evidence, ...] = ()
    """What HolisticTraceAnalysis says of the same traces, where it was asked for."""
    device: tuple[Evidence, ...] = ()
    """What a CUDA snapshot shows of each device's memory, where its history can be replayed."""
    gpu_estimate: tuple[Evidence, ...] = ()
    """What a run on a CPU would take on a GPU, or why no window tells, where that was asked for."""
    window_memory: Series | None = None
    """Memory by what it is for through the steps of the fullest allocation window, where one was recorded."""
    processes: Table | None = None
    """Memory of the training process and its children at the instant they held most together, where it was read."""
    evaluations: tuple[Evaluation, ...] = ()
    traced_ms: float | None = None
    """Of a trace from elsewhere the mean step, or its length where it marks none: what its times are shares of."""
    evaluation_notes: tuple[str, ...] = ()
    """Sentences computed from them: their time, their peak beside training's, what their batches leave behind."""

    @property
    def median_step_ms(self) -> float | None:
        """The median of the metric `step_ms`, else of all steps, in milliseconds; None without steps."""
        times = self._samples("step_ms") or [step.total_ms for step in self.timeline.steps]
        return statistics.median(times) if times else None

    @property
    def whole_ms(self) -> float | None:
        """What times are shares of: the median step, of a trace from elsewhere the mean one."""
        return self.traced_ms or self.median_step_ms

    @property
    def peak_bytes(self) -> int | None:
        """The highest allocated memory at any boundary or within a window; None where none was sampled."""
        sampled = [sample.allocated_bytes for sample in self.timeline.memory]
        return max([*sampled, *map(int, self._samples("window_peak_bytes"))], default=None)

    def _samples(self, name: str) -> list[float]:
        return [sample for metric in self.metrics if metric.name == name for sample in metric.samples]


ENDED_WELL = ("finished", "stopped")
"""Of how a run can end."""

RecorderPart = Literal["none", "apart", "possible", "certain"]
"""The recorder's part in an error: it cannot have any; none of its code stood where it was raised; some did; its code
raised it."""


@frozen_dataclass
class RunError:
    """The exception that ended a run, at step `step`; `blame` is the innermost line of the user's that it passed."""

    kind: str
    message: str
    step: int
    stage: str | None
    blame: SourceLine | None
    recorder_part: RecorderPart = "none"


@frozen_dataclass
class RunIdentity:
    """Which execution a report is about. `environment` holds (name, value) in reading order."""

    run_id: str
    path: str
    name: str
    command: tuple[str, ...]
    started: str
    duration_s: float | None
    ended: str
    exit_code: int | None
    branch: str | None
    commit: str | None
    is_dirty: bool
    devices: tuple[str, ...]
    num_ranks: int
    num_steps: int
    environment: tuple[tuple[str, str], ...]
    configuration: tuple[tuple[str, str], ...] = ()
    error: RunError | None = None


ProofVerdict = Literal["proved", "not proved", "unclear"]


@frozen_dataclass
class Proof:
    """What runs with a finding's fix and without it say of it, and what failed or could not be told.

    `head` is what a person wrote for it, a branch or '.'; empty of the finding's own edit. `predicted` and `measured`
    (with an interval where there is one) are savings in `unit`, ms per step or bytes of the peak; None where nothing is
    promised, or was measured.
    """

    key: str
    audit_id: str
    headline: str
    verdict: ProofVerdict
    head: str = ""
    reasons: tuple[str, ...] = ()
    unit: str = ""
    predicted: float | None = None
    measured: float | None = None
    interval: tuple[float, float] | None = None


@frozen_dataclass
class Report:
    """Every audit's result over one run, with the measurements that hold for any run."""

    run: RunIdentity
    measurements: Measurements
    audits: tuple[AuditResult, ...]
    warnings: tuple[str, ...] = ()
    proofs: tuple[Proof, ...] = ()
    schema_version: int = 1


Verdict = Literal["better", "worse", "same", "unclear"]


@frozen_dataclass
class MetricChange:
    """One metric on both sides: medians and spreads (interquartile ranges) in its base unit.

    Where `label` names another statistic (a percentile, the mean, the highest), the medians are that statistic of
    each run instead. `effect` is head over base minus one; `interval` bounds it where there is one; `reason` says
    what the verdict rests on. `budget` is None for a metric that never gates. NaN is what a run did not measure.
    """

    name: str
    label: str
    unit: str
    base_median: float
    base_spread: float
    head_median: float
    head_spread: float
    effect: float | None
    interval: tuple[float, float] | None
    verdict: Verdict
    budget: float | None
    is_over_budget: bool
    reason: str


Presence = Literal["added", "unchecked", "kept", "gone"]


@frozen_dataclass
class FindingChange:
    """A finding by its key, and which side has it; `unchecked` where the other side could not be looked at."""

    key: str
    change: Presence
    audit_id: str
    headline: str
    location: str
    message: str


@frozen_dataclass
class LineGrowth:
    """A line that head changed, and by how much longer a step of head's is at it, in milliseconds."""

    blame: SourceLine
    longer_ms: float


@frozen_dataclass
class Comparison:
    """Of `num_runs` a side; base and head are the first ones.

    `differences` names what differs in machine or configuration where the comparison was forced. Where head is slower,
    `slower_at` has the lines of the `diff` that tell why, else `slower_stage` where most of it lies.
    """

    base: RunIdentity
    head: RunIdentity
    metrics: tuple[MetricChange, ...]
    findings: tuple[FindingChange, ...]
    differences: tuple[str, ...] = ()
    num_runs: int = 1
    slower_at: tuple[LineGrowth, ...] = ()
    slower_stage: str = ""
    pictures: tuple[Series, ...] = ()
    diff: tuple[str, ...] = ()
    """Of the sides' source trees, in lines."""
    schema_version: int = 1

    @property
    def is_failed(self) -> bool:
        """Whether a gated metric got worse by more than its budget."""
        return any(metric.is_over_budget for metric in self.metrics)
