"""What a run that was recorded on a CPU would reserve on a GPU: an estimate."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, Self

from efprof.artifacts.steps import StepRecord
from efprof.facts.allocator.history import History
from efprof.facts.allocator.replay_results import form_of_trial
from efprof.facts.allocator.settings import AllocatorSettings, parse_configuration
from efprof.facts.allocator.what_if import Trial, WhatIf, best_of, warnings_about, worth_a_try
from efprof.facts.gpu_estimate.from_cpu import older_memory, passage_of, peak_allocated_bytes, play
from efprof.facts.gpu_estimate.on_cuda import CUBLAS_BYTES, CUBLAS_HOPPER_BYTES, num_cublas_workspaces
from efprof.facts.peak.live_memory import LiveMemory, LiveWindow
from efprof.facts.run.run import Run, open_run
from efprof.facts.steps.step_times import StepTimes
from efprof.model import Evidence, Narrative, NotRecorded, Numbers, frozen_dataclass

NUM_ROUNDS = 6
"""How often the windows are played. In 34 recordings (tests/runs) the default's peak was reached by the third round, in
one of them by the sixth; sixteen added nothing."""

MAX_EVENTS = 50_000
"""All windows are played in order up to here, beyond it only the fullest: an event takes a microsecond
in each round, layout and setting, and a quarter of a kilobyte in each round."""

MAX_WASTE = 12 / 11
"""Bytes reserved for a byte in use, at most: of a segment of 12 MiB less than 1 MiB is not split off. Larger blocks
waste a smaller share, smaller ones leave what others can use."""

TITLE = "Memory on a GPU, an estimate"
CAVEATS = (
    "An estimate: nothing of this ran on a GPU. The workspaces of cuDNN and NCCL are missing, and so is the CUDA "
    "context, some hundred MiB beside what is reserved.",
    "In it is what only a CPU's kernels need: scratch memory, tensors cast to float32, dropout masks of more than a "
    "byte; a fused GPU kernel, such as flash attention, needs less. What is allocated below torch, as by MKL, is not.",
    "Autocast computes powers, softmax and norms in float32 on CUDA, and on a CPU in half precision: that is missing.",
    "The likely figure holds what the steps are evidence of. Frozen weights, buffers, copies of the model and loaded "
    "optimizer state are in the upper end only, as is all that would stay on the host: data, Python, torch itself.",
    "Steps with larger batches than those of the windows need more, and growth from step to step is not in it.",
)

Fit = Literal["yes", "no", "unclear"]


class GpuEstimate:
    """The run's windows on a GPU that nobody has."""

    def __init__(self, windows: Sequence[LiveWindow], records: Sequence[StepRecord]) -> None:
        self.window_names = tuple(window.name for window in windows)
        passages = [passage_of(window) for window in windows]
        self.older = older = older_memory(records, windows, passages)
        self.num_workspaces = num_cublas_workspaces(windows)
        self.workspace_bytes = self.num_workspaces * CUBLAS_BYTES
        first = [*older.first, *[CUBLAS_BYTES] * self.num_workspaces]
        entries = play(passages, first, older.states, num_rounds=NUM_ROUNDS, cleared_at=older.cleared_at)
        default = AllocatorSettings()
        self.what_if = WhatIf(History(device=0, entries=entries, settings=default))
        self.peak_allocated_bytes = peak_allocated_bytes(entries, default)
        """The most in use at once, rounded as by the device's default settings: no setting reserves less."""

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where no allocation window was recorded, or the run was on a CUDA device."""
        if run.is_on_cuda:
            raise NotRecorded(
                "this run was recorded on a CUDA device, where nothing need be estimated; "
                "give one of its snapshots, memory-<n>.pickle in the folder of a rank."
            )
        windows = run.get(LiveMemory).windows
        if sum(len(window.events) for window in windows) > MAX_EVENTS:
            windows = (max(windows, key=lambda window: window.peak_bytes),)
        return cls(windows, [time.record for time in run.get(StepTimes).every])

    def under(self, configuration: str) -> Trial:
        """The likely outcome, the upper end with what the process held besides; raises BadConfiguration."""
        settings = parse_configuration(configuration)
        likely = self.what_if.run(settings)
        besides = (self.older.rest_bytes or 0) + self.num_workspaces * (CUBLAS_HOPPER_BYTES - CUBLAS_BYTES)
        rounded = 1 + max((1 / divisions for divisions in settings.divisions if divisions > 1), default=0)
        high = likely.peak_reserved_high_bytes + round(MAX_WASTE * rounded * besides)
        is_default = settings == AllocatorSettings()
        return Trial(
            configuration=configuration,
            outcome=replace(likely, peak_reserved_high_bytes=high),
            warnings=() if is_default else warnings_about(settings, self.what_if),
        )

    def fits(self, estimate: Trial, capacity: int) -> Fit:
        """Whether a device of so many bytes has room for the whole band, or not even for what is in use at once."""
        if estimate.outcome.peak_reserved_high_bytes <= capacity:
            return "yes"
        return "no" if self.peak_allocated_bytes > capacity else "unclear"


def gpu_overview(run: Run) -> tuple[Evidence, ...]:
    """What a report says of it; why there is none without an allocation window, or where the run was on CUDA."""
    try:
        estimate = run.get(GpuEstimate)
    except NotRecorded as absent:
        return (Narrative(title="No estimate of memory on a GPU", paragraphs=(str(absent),)),)
    default = estimate.under("").outcome
    ends = default.peak_reserved_low_bytes, default.peak_reserved_high_bytes
    numbers = Numbers.of(
        "Played by the model of CUDA's caching allocator, under its default settings",
        ("peak reserved", default.peak_reserved_bytes, "bytes", ends),
        ("most in use at once", estimate.peak_allocated_bytes, "bytes"),
        ("idle at that peak", default.stranded_bytes, "bytes"),
    )
    return numbers, Narrative(title=TITLE, paragraphs=CAVEATS)


@frozen_dataclass
class RunEstimate:
    """One device. `fits` has each configuration's answer, in the order of `predictions`; none where none was named.

    `rest_bytes`, of what is older than the windows, is what no step is evidence of; None where unknown.
    """

    file: str
    windows: tuple[str, ...]
    capacity_bytes: int | None
    peak_allocated_bytes: int
    parameter_bytes: int
    optimizer_state_bytes: int
    rest_bytes: int | None
    predictions: tuple[Trial, ...]
    fits: tuple[Fit, ...]
    best: str | None
    caveats: tuple[str, ...] = CAVEATS


def estimate_run(folder: Path, configurations: tuple[str, ...], *, capacity: int | None) -> RunEstimate:
    """Torch's default, and the configurations or those worth a try; no prediction stops where the device ends.

    Raises UnreadableInput, NotRecorded, BadConfiguration.
    """
    program = open_run(folder).get(GpuEstimate)
    texts = dict.fromkeys(("", *(configurations or worth_a_try(program.what_if))))
    estimates, older = tuple(program.under(text) for text in texts), program.older
    best = best_of(program.what_if, estimates)
    return RunEstimate(
        file=str(folder),
        windows=program.window_names,
        capacity_bytes=capacity,
        peak_allocated_bytes=program.peak_allocated_bytes,
        parameter_bytes=older.parameter_bytes,
        optimizer_state_bytes=older.state_bytes,
        rest_bytes=older.rest_bytes,
        predictions=estimates,
        fits=() if capacity is None else tuple(program.fits(one, capacity) for one in estimates),
        best=best.configuration if best else None,
    )


def form_of_estimate(estimate: RunEstimate) -> dict[str, Any]:
    """As `--json` prints it: as what is said of a snapshot, each device and prediction labelled an estimate."""
    fits = estimate.fits or (None,) * len(estimate.predictions)
    device = {
        **asdict(estimate),
        "device": 0,
        "replayable": False,
        "reason": "It was recorded on a CPU, which has no caching allocator to compare with.",
        "estimate": True,
        "predictions": [
            form_of_trial(one) | {"estimate": True, "fits": fit, "out_of_memory": fit == "no"}
            for one, fit in zip(estimate.predictions, fits, strict=True)
        ],
    }
    del device["fits"]
    return {"file": device.pop("file"), "devices": [device]}
