"""What a run that was recorded on a CPU would reserve on a GPU: an estimate."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, Self

import msgspec

from efprof.artifacts.snapshot import Entry
from efprof.facts.allocator.advice import Trial, best_of, warnings_about, worth_a_try
from efprof.facts.allocator.replay_results import DeviceReplay, FileReplay, Prediction
from efprof.facts.allocator.settings import AllocatorSettings, parse_configuration
from efprof.facts.allocator.what_if import WhatIf
from efprof.facts.gpu_estimate.from_cpu import (
    AllocationTrace,
    Assumption,
    OlderMemory,
    assumptions_about,
    history_from,
    older_memory,
    passage_of,
    peak_allocated_bytes,
    play,
)
from efprof.facts.peak.live_memory import LiveMemory
from efprof.facts.run.run import Run, open_run
from efprof.facts.steps.step_times import StepTimes
from efprof.model import Evidence, Narrative, NotRecorded, Numbers

NUM_ROUNDS: Final = 6
"""How often the windows are played. In 34 recordings (tests/runs) the default's peak was reached by the third round, in
one of them by the sixth; sixteen added nothing."""

MAX_EVENTS: Final = 50_000
"""All windows are played in order up to here, beyond it only the fullest: an event takes a microsecond
in each round, layout, assumption and setting, and a quarter of a kilobyte in each round and assumption."""

TITLE: Final = "Memory on a GPU, an estimate"
CAVEATS: Final = (
    "An estimate: nothing of this ran on a GPU. The workspaces of cuBLAS, cuDNN and NCCL are missing, and so is the "
    "CUDA context, some hundred MiB beside what is reserved.",
    "In it is what only a CPU's kernels need: scratch memory, tensors cast to float32; a fused GPU kernel, such as "
    "flash attention, needs less. What is allocated below torch, as by MKL, is not in it.",
    "The likely figure holds what the steps are evidence of. Frozen weights, buffers, copies of the model and loaded "
    "optimizer state are in the upper end only, as is all that would stay on the host: data, Python, torch itself.",
    "Steps with larger batches than those of the windows need more, and growth from step to step is not in it.",
)

NOT_REPLAYABLE = (
    "It was recorded on a CPU, which has no caching allocator to compare with; 'efprof allocator what-if' estimates "
    "what the same run would reserve on a GPU."
)

Fit = Literal["yes", "no", "unclear"]


class GpuEstimate:
    """The run's windows on a GPU that nobody has."""

    def __init__(self, passages: Sequence[AllocationTrace], older: OlderMemory, *, names: Sequence[str] = ()) -> None:
        self.window_names = tuple(names)
        self.older = older
        self.assumptions = assumptions_about(older)
        """The first is the likely one, the last the one with all that the process held."""
        self._passages = tuple(passages)

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where no allocation window was recorded, or the run was on a CUDA device."""
        if run.run_file.memory_source.startswith("CUDA"):
            raise NotRecorded(
                "this run was recorded on a CUDA device, where nothing need be estimated; "
                "give one of its snapshots, memory-<n>.pickle in the folder of a rank."
            )
        windows = run.get(LiveMemory).windows
        if sum(len(window.events) for window in windows) > MAX_EVENTS:
            windows = (max(windows, key=lambda window: window.peak_bytes),)
        passages = [passage_of(window) for window in windows]
        records = [time.record for time in run.get(StepTimes).every]
        return cls(passages, older_memory(records, windows, passages), names=[window.name for window in windows])

    @cached_property
    def what_if(self) -> WhatIf:
        """The likely program, for any settings."""
        return self._what_ifs[0]

    @cached_property
    def peak_allocated_bytes(self) -> int:
        """The most in use at once, rounded as by the device's default settings: no setting reserves less."""
        return peak_allocated_bytes(self._entries(self.assumptions[0]), AllocatorSettings())

    @cached_property
    def assumed_peaks(self) -> tuple[tuple[str, int], ...]:
        """What the answer hangs on: each assumption, and the peak that follows of it under torch's default settings."""
        return tuple(
            (assumption.name, what_if.recorded.peak_reserved_bytes)
            for assumption, what_if in zip(self.assumptions, self._what_ifs, strict=True)
        )

    @cached_property
    def default(self) -> Trial:
        return self.under("")

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        return tuple(self.under(text) for text in worth_a_try(self.what_if))

    def under(self, configuration: str) -> Trial:
        """The likely outcome, low and high over all assumptions and layouts; raises BadConfiguration."""
        settings = parse_configuration(configuration)
        outcomes = [what_if.run(settings) for what_if in self._what_ifs]
        is_default = settings == AllocatorSettings()
        likely = replace(
            outcomes[0],
            peak_reserved_low_bytes=min(outcome.peak_reserved_low_bytes for outcome in outcomes),
            peak_reserved_high_bytes=max(outcome.peak_reserved_high_bytes for outcome in outcomes),
        )
        return Trial(
            configuration=configuration,
            outcome=likely,
            warnings=() if is_default else warnings_about(settings, self.what_if),
        )

    def fits(self, estimate: Trial, capacity: int) -> Fit:
        """Whether a device of so many bytes has room for the whole band, or under no assumption for what is in use."""
        if estimate.outcome.peak_reserved_high_bytes <= capacity:
            return "yes"
        in_use = (peak_allocated_bytes(self._entries(one), AllocatorSettings()) for one in self.assumptions)
        return "no" if min(in_use) > capacity else "unclear"

    @cached_property
    def _what_ifs(self) -> tuple[WhatIf, ...]:
        return tuple(WhatIf(history_from(self._entries(assumption))) for assumption in self.assumptions)

    def _entries(self, assumption: Assumption) -> list[Entry]:
        return play(
            self._passages,
            first=assumption.first,
            at_optimizer=assumption.at_optimizer,
            in_optimizer=assumption.in_optimizer,
            num_rounds=NUM_ROUNDS,
            returns_early=assumption.returns_early,
        )


def gpu_overview(run: Run) -> tuple[Evidence, ...]:
    """What a report says of it; raises NotRecorded without an allocation window, or where the run was on CUDA."""
    estimate = run.get(GpuEstimate)
    default = estimate.default.outcome
    ends = default.peak_reserved_low_bytes, default.peak_reserved_high_bytes
    numbers = Numbers.of(
        "Played by the model of CUDA's caching allocator, under its default settings",
        ("peak reserved", default.peak_reserved_bytes, "bytes", ends),
        ("most in use at once", estimate.peak_allocated_bytes, "bytes"),
        ("idle at that peak", default.stranded_bytes, "bytes"),
    )
    return numbers, Narrative(title=TITLE, paragraphs=CAVEATS)


class EstimatedPrediction(Prediction, kw_only=True):
    """One configuration; low and high are over what no CPU recording tells and over the layouts that were tried."""

    fits: Fit | None
    """None where no device was named."""
    estimate: bool = True


class DeviceEstimate(msgspec.Struct, kw_only=True):
    """`rest_bytes`, of what is older than the windows, is what no step is evidence of; None where unknown."""

    device: int
    replayable: bool
    reason: str
    estimate: bool
    windows: tuple[str, ...]
    capacity_bytes: int | None
    peak_allocated_bytes: int
    parameter_bytes: int
    kept_gradient_bytes: int
    optimizer_state_bytes: int
    rest_bytes: int | None
    default: EstimatedPrediction
    predictions: list[EstimatedPrediction]
    assumptions: dict[str, int]
    """The peak under torch's default settings, were each of these true."""
    caveats: tuple[str, ...]
    best: str | None


class RunEstimate(msgspec.Struct, kw_only=True):
    file: str
    estimate: bool
    devices: list[DeviceEstimate]


def replay_run(folder: Path) -> FileReplay:
    """Why nothing of it can be replayed; raises NotRecorded where it was on a CUDA device, or has no window."""
    open_run(folder).get(GpuEstimate)
    return FileReplay(file=str(folder), devices=[DeviceReplay(device=0, replayable=False, reason=NOT_REPLAYABLE)])


def estimate_run(folder: Path, configurations: tuple[str, ...], *, capacity: int | None = None) -> RunEstimate:
    """The configurations, or those worth a try; raises UnreadableInput, NotRecorded, BadConfiguration."""
    program = open_run(folder).get(GpuEstimate)
    estimates = tuple(program.under(text) for text in configurations) or program.trials
    best, older = best_of(program.what_if, estimates), program.older
    device = DeviceEstimate(
        device=0,
        replayable=False,
        reason=NOT_REPLAYABLE.partition(";")[0] + ".",
        estimate=True,
        windows=program.window_names,
        capacity_bytes=capacity,
        peak_allocated_bytes=program.peak_allocated_bytes,
        parameter_bytes=older.parameter_bytes,
        kept_gradient_bytes=older.gradient_bytes,
        optimizer_state_bytes=older.state_bytes,
        rest_bytes=older.rest_bytes if older.boundary_bytes is not None else None,
        default=_prediction_of(program, program.default, capacity),
        predictions=[_prediction_of(program, estimate, capacity) for estimate in estimates],
        assumptions=dict(program.assumed_peaks),
        caveats=CAVEATS,
        best=best.configuration if best else None,
    )
    return RunEstimate(file=str(folder), estimate=True, devices=[device])


def _prediction_of(program: GpuEstimate, estimate: Trial, capacity: int | None) -> EstimatedPrediction:
    """What would be reserved with no limit, and whether the device has that."""
    outcome, fits = estimate.outcome, None if capacity is None else program.fits(estimate, capacity)
    return EstimatedPrediction(
        conf=estimate.configuration,
        peak_reserved_bytes=outcome.peak_reserved_bytes,
        peak_reserved_low_bytes=outcome.peak_reserved_low_bytes,
        peak_reserved_high_bytes=outcome.peak_reserved_high_bytes,
        stranded_bytes=outcome.stranded_bytes,
        device_allocs=outcome.calls.num_taken,
        device_frees=outcome.calls.num_returned,
        retries=outcome.calls.num_retries,
        out_of_memory=fits == "no",
        fits=fits,
        warnings=estimate.warnings,
    )
