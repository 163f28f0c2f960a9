"""What a CPU run would reserve on a GPU: worked out by hand, whether it fits, and what real recordings give."""

from pathlib import Path

import pytest

from efprof.facts.allocator.settings import MIB
from efprof.facts.gpu_estimate import gpu_estimate
from efprof.facts.gpu_estimate.gpu_estimate import NUM_ROUNDS, GpuEstimate
from efprof.facts.run.run import open_run
from efprof.model import NotRecorded
from tests.facts.gpu_estimate.test_from_cpu import RUNS, events_at, one_step_run, steps
from tests.support.builders import GPU, make_steps, write_allocations, write_run


def test_the_peak_of_one_step_and_each_assumption_move_as_worked_out_by_hand(tmp_path: Path) -> None:
    """12 MiB hold the parameters, 20 the batch and the gradient, 30 the activation; in these the optimizer puts its
    24 MiB, so that the next activation gets 30 of its own. Most is in use in the second forward pass: 12 and 24, the
    batch's 4, the last step's gradient of 12, and 30.
    """
    estimate = one_step_run(tmp_path).get(GpuEstimate)
    outcome = estimate.default.outcome
    assert outcome.peak_reserved_bytes == (12 + 20 + 30 + 30) * MIB
    assert outcome.calls.num_allocs == 4
    assert estimate.peak_allocated_bytes == (12 + 24 + 4 + 12 + 30) * MIB
    # At once the optimizer needs 12 MiB more.
    peaks = [num_bytes // MIB for _, num_bytes in one_step_run(tmp_path / "second").get(GpuEstimate).assumed_peaks]
    assert peaks[:3] == [92, 92, 104]
    assert peaks[3] > 92 + (300 - 12 - 24 - 16)


@pytest.mark.parametrize(
    ("capacity_mib", "fits"), [(80, "no"), (91, "unclear"), (103, "unclear"), (200, "unclear"), (1000, "yes")]
)
def test_whether_it_fits_is_said_only_where_all_assumptions_agree(tmp_path: Path, capacity_mib: int, fits: str) -> None:
    estimate = one_step_run(tmp_path).get(GpuEstimate)
    assert estimate.fits(estimate.default, capacity_mib * MIB) == fits


def test_the_band_holds_the_likely_figure_under_each_setting(tmp_path: Path) -> None:
    estimate = one_step_run(tmp_path).get(GpuEstimate)
    for one in (estimate.default, *estimate.trials):
        assert (
            one.outcome.peak_reserved_low_bytes
            <= one.outcome.peak_reserved_bytes
            <= one.outcome.peak_reserved_high_bytes
        ), one.configuration
        assert one.outcome.peak_reserved_bytes >= estimate.peak_allocated_bytes


@pytest.mark.parametrize(("most_events", "names"), [(50_000, [1, 2]), (3, [2])])
def test_of_long_windows_only_the_fullest_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_events: int, names: list[int]
) -> None:
    monkeypatch.setattr("efprof.facts.gpu_estimate.gpu_estimate.MOST_EVENTS", most_events)
    run = write_run(tmp_path / "run", steps=steps())
    for number, size in enumerate((MIB, 2 * MIB), start=1):
        write_allocations(run.rank_folder, number, events_at(0, ((1.0, 1, size), (2.0, 1, -size))))
    found = run.get(GpuEstimate).window_names
    assert found == tuple(f"allocations-{number}.parquet" for number in names)


def test_a_run_without_windows_or_on_a_gpu_is_not_estimated(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=make_steps(3))
    with pytest.raises(NotRecorded, match=r"^allocations-<n>.parquet is missing; record the run without"):
        run.get(GpuEstimate)
    run = write_run(tmp_path / "second", steps=make_steps(3), devices=[GPU], memory_source="CUDA allocator")
    with pytest.raises(NotRecorded, match="recorded on a CUDA device"):
        run.get(GpuEstimate)


# What real programs recorded.


@pytest.mark.parametrize("folder", sorted(RUNS.glob("*-sick")), ids=lambda folder: folder.name)
def test_every_recording_is_estimated_and_settles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = open_run(folder).get(GpuEstimate)
    default = estimate.default
    assert estimate.peak_allocated_bytes <= default.outcome.peak_reserved_bytes
    assert (
        default.outcome.peak_reserved_low_bytes
        <= default.outcome.peak_reserved_bytes
        <= default.outcome.peak_reserved_high_bytes
    )
    assert default.outcome.peak_reserved_high_bytes >= (estimate.older.boundary_bytes or 0)
    monkeypatch.setattr(gpu_estimate, "NUM_ROUNDS", NUM_ROUNDS + 1)
    longer = open_run(folder).get(GpuEstimate)
    longer.assumptions = longer.assumptions[:1]  # the likely one, of which a seventh round must add nothing
    assert longer.default.outcome.peak_reserved_bytes == default.outcome.peak_reserved_bytes


def test_the_large_logits_are_what_a_gpu_would_have_to_reserve_for() -> None:
    """Three times 512 x 20,000 numbers of 4 bytes, of 39 MiB each, and one segment of 20 for the rest."""
    default = open_run(RUNS / "backward_peak-sick").get(GpuEstimate).default
    assert 3 * 39 * MIB < default.outcome.peak_reserved_bytes < 4 * 39 * MIB
