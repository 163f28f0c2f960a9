"""What a CPU recording would reserve on a GPU, as the command line and its JSON give it."""

from pathlib import Path

import msgspec

from efprof.facts.allocator.accounts import DeviceReplay, FileReplay, Prediction
from efprof.facts.allocator.settings import parse_configuration
from efprof.facts.gpu_estimate import CAVEATS, Estimate, Fit, GpuEstimate
from efprof.facts.run import open_run

NOT_REPLAYABLE = (
    "It was recorded on a CPU, which has no caching allocator to compare with; 'efprof allocator what-if' estimates "
    "what the same run would reserve on a GPU."
)


class EstimatedPrediction(Prediction, kw_only=True):
    """One configuration; low and high are over what no CPU recording tells and over the layouts that were tried."""

    fits: Fit | None
    """None where no device was named."""
    estimate: bool = True


class DeviceEstimate(msgspec.Struct, kw_only=True):
    """The device that nobody has.

    Of what is older than the windows, `rest_bytes` is what no step is evidence of; None where the total is not known.
    """

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
    """A run that was recorded on a CPU."""

    file: str
    estimate: bool
    devices: list[DeviceEstimate]


def replay_run(folder: Path) -> FileReplay:
    """Why nothing of it can be replayed; raises NotRecorded where it was on a CUDA device, or has no window."""
    open_run(folder).get(GpuEstimate)
    return FileReplay(file=str(folder), devices=[DeviceReplay(device=0, replayable=False, reason=NOT_REPLAYABLE)])


def estimate_run(folder: Path, configurations: tuple[str, ...], *, capacity: int | None = None) -> RunEstimate:
    """Try the configurations, or those that are worth a try where none is given.

    Raises UnreadableInput, NotRecorded where there is no allocation window, and BadConfiguration.
    """
    recorded = open_run(folder).get(GpuEstimate)
    program = recorded if capacity is None else recorded.on_device(capacity)
    estimates = tuple(program.under(text) for text in configurations) or program.trials
    best, older = program.best_of(estimates), program.older
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
        default=_prediction_of(program, program.default, recorded),
        predictions=[_prediction_of(program, estimate, recorded) for estimate in estimates],
        assumptions=dict(recorded.assumed_peaks),
        caveats=CAVEATS,
        best=best.configuration if best else None,
    )
    return RunEstimate(file=str(folder), estimate=True, devices=[device])


def _prediction_of(program: GpuEstimate, estimate: Estimate, unlimited: GpuEstimate) -> EstimatedPrediction:
    """What would be reserved with no limit, and what happens on the device: there it can be no more than it has."""
    has_own_limit = parse_configuration(estimate.configuration).memory_fraction is not None
    needed = estimate if has_own_limit else unlimited.under(estimate.configuration)
    outcome = estimate.outcome
    return EstimatedPrediction(
        conf=estimate.configuration,
        peak_reserved_bytes=needed.outcome.peak_reserved_bytes,
        peak_reserved_low_bytes=needed.low_bytes,
        peak_reserved_high_bytes=needed.high_bytes,
        stranded_bytes=needed.outcome.stranded_bytes,
        device_allocs=outcome.calls.num_taken,
        device_frees=outcome.calls.num_returned,
        retries=outcome.calls.num_retries,
        out_of_memory=outcome.is_out_of_memory,
        fits=None if program.capacity is None else program.fits(estimate),
        warnings=estimate.warnings,
    )
