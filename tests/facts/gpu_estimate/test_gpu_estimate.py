"""What a CPU run would reserve on a GPU: worked out by hand, whether it fits, and what real recordings give."""

import json
from pathlib import Path

import pytest

from efprof.commands.report import analyse, render
from efprof.facts.allocator.settings import MIB
from efprof.facts.gpu_estimate import gpu_estimate
from efprof.facts.gpu_estimate.gpu_estimate import NUM_ROUNDS, TITLE, GpuEstimate, gpu_overview
from efprof.facts.run.run import open_run
from efprof.model import Numbers
from tests.facts.gpu_estimate.test_from_cpu import RUNS, events_at, one_step_run, steps
from tests.support.builders import make_steps, write_allocations, write_run


def test_the_peak_of_one_step_is_as_worked_out_by_hand(tmp_path: Path) -> None:
    """12 MiB hold the parameters, 20 the batch and the gradient, 30 the activation; in these the optimizer puts its
    24 MiB, so that the next activation gets 30 of its own. Most is in use in the second forward pass: 12 and 24, the
    batch's 4, the last step's gradient of 12, and 30.
    """
    run = one_step_run(tmp_path)
    estimate = run.get(GpuEstimate)
    outcome = estimate.under("").outcome
    assert outcome.peak_reserved_bytes == (12 + 20 + 30 + 30) * MIB
    assert outcome.calls.num_taken == 4
    assert estimate.peak_allocated_bytes == (12 + 24 + 4 + 12 + 30) * MIB
    assert outcome.peak_reserved_high_bytes > (92 + 300 - 12 - 24 - 16) * MIB
    for one in (estimate.under(""), estimate.under("expandable_segments:True")):
        assert (
            one.outcome.peak_reserved_low_bytes
            <= one.outcome.peak_reserved_bytes
            <= one.outcome.peak_reserved_high_bytes
        ), one.configuration
        assert one.outcome.peak_reserved_bytes >= estimate.peak_allocated_bytes
    halves = estimate.under("roundup_power2_divisions:2").outcome
    assert halves.peak_reserved_high_bytes - halves.peak_reserved_bytes > 1.4 * (300 - 12 - 24 - 16) * MIB
    (numbers,) = [one for one in gpu_overview(run) if isinstance(one, Numbers)]
    assert numbers.numbers[0].value == outcome.peak_reserved_bytes, "the report says what the command says"
    assert numbers.numbers[0].interval == (
        estimate.under("").outcome.peak_reserved_low_bytes,
        estimate.under("").outcome.peak_reserved_high_bytes,
    )


def test_every_form_of_the_report_has_it_where_somebody_asked_or_says_why_there_is_none(tmp_path: Path) -> None:
    recorded = RUNS / "oversized_peak-sick"
    report = analyse(recorded, has_gpu_estimate=True)
    text = render(report, "text")
    sentence = "On a GPU, an estimate: peak reserved 184 MiB (184 MiB to 309 MiB), most in use at once 161 MiB"
    assert f"\n{sentence}" in text
    assert sentence in render(report, "markdown")
    numbers, narrative = json.loads(render(report, "json"))["measurements"]["gpu_estimate"]
    assert [one["label"] for one in numbers["numbers"]][:2] == ["peak reserved", "most in use at once"]
    assert narrative["title"] == TITLE
    unasked = analyse(recorded)
    assert "On a GPU" not in render(unasked, "text")
    assert json.loads(render(unasked, "json"))["measurements"]["gpu_estimate"] == []
    write_run(tmp_path, steps=make_steps(1))
    told = render(analyse(tmp_path, has_gpu_estimate=True), "text")
    assert "No estimate of memory on a GPU: allocations-<n>.parquet is missing" in told


def test_the_page_calls_it_an_estimate_and_says_what_is_missing_where_somebody_asked_and_a_window_is_there(
    tmp_path: Path,
) -> None:
    recorded = RUNS / "oversized_peak-sick"
    assert TITLE not in render(analyse(recorded), "html")
    page = render(analyse(recorded, has_gpu_estimate=True), "html")
    assert TITLE in page
    assert "nothing of this ran on a GPU" in page
    write_run(tmp_path, steps=make_steps(1))
    assert TITLE not in render(analyse(tmp_path, has_gpu_estimate=True), "html")


@pytest.mark.parametrize(("most_events", "names"), [(50_000, [1, 2]), (3, [2])])
def test_of_long_windows_only_the_fullest_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_events: int, names: list[int]
) -> None:
    monkeypatch.setattr("efprof.facts.gpu_estimate.gpu_estimate.MAX_EVENTS", most_events)
    run = write_run(tmp_path / "run", steps=steps())
    for number, size in enumerate((MIB, 2 * MIB), start=1):
        write_allocations(run.rank_folder, number, events_at(0, ((1.0, 1, size), (2.0, 1, -size))))
    found = run.get(GpuEstimate).window_names
    assert found == tuple(f"allocations-{number}.parquet" for number in names)


# What real programs recorded.


EVERY_RECORDING = [
    pytest.param(folder, id=folder.name, marks=[pytest.mark.long] * bool(place % 4))
    for place, folder in enumerate(sorted(RUNS.glob("*-sick")))
]
"""A quarter of them whenever tests run."""


@pytest.mark.parametrize("folder", EVERY_RECORDING)
def test_every_recording_is_estimated_and_settles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = open_run(folder).get(GpuEstimate)
    default = estimate.under("")
    assert estimate.peak_allocated_bytes <= default.outcome.peak_reserved_bytes
    assert (
        default.outcome.peak_reserved_low_bytes
        <= default.outcome.peak_reserved_bytes
        <= default.outcome.peak_reserved_high_bytes
    )
    assert default.outcome.peak_reserved_high_bytes >= (estimate.older.boundary_bytes or 0)
    monkeypatch.setattr(gpu_estimate, "NUM_ROUNDS", NUM_ROUNDS + 1)
    longer = open_run(folder).get(GpuEstimate)  # a seventh round must add nothing
    assert longer.under("").outcome.peak_reserved_bytes == default.outcome.peak_reserved_bytes


def test_the_large_logits_are_what_a_gpu_would_have_to_reserve_for() -> None:
    """Three times 512 x 20,000 numbers of 4 bytes, of 39 MiB each, a segment of 20 for the rest, one for cuBLAS."""
    default = open_run(RUNS / "backward_peak-sick").get(GpuEstimate).under("")
    assert (3 * 39 + 20) * MIB < default.outcome.peak_reserved_bytes < (4 * 39 + 20) * MIB
