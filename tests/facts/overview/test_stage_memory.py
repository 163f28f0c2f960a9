"""What the shape of memory within a step is said to mean."""

from pathlib import Path

from efprof.artifacts.steps import StepRecord
from efprof.facts.overview.measurements import recommendations
from efprof.facts.run.run import open_run
from efprof.facts.steps.step_times import StepTimes
from efprof.units import MIB
from tests.support.builders import make_step, write_run

RUNS = Path(__file__).parents[2] / "runs"


def about_memory(folder: Path, steps: list[StepRecord]) -> str:
    return recommendations(write_run(folder, steps=steps).get(StepTimes))[0]


def steps_of(*sizes_mib: float) -> list[StepRecord]:
    """Steps with these sizes at the boundaries."""
    sizes = [round(size * MIB) for size in sizes_mib]
    return [make_step(step, allocated_bytes=sizes) for step in range(20)]


def test_activations_are_advised_to_be_saved_where_they_add_a_quarter_and_not_a_sixtieth(tmp_path: Path) -> None:
    told = about_memory(tmp_path, steps_of(116, 118, 118, 116, 116))
    assert "checkpointing" not in told
    assert told.startswith(
        "Allocated memory stays near 118 MiB through the step, of which the step itself adds 2.00 MiB"
    )
    told = about_memory(tmp_path / "second", steps_of(118, 160, 160, 119, 119))
    assert "(160 MiB on average, 42.0 MiB above pre_forward) at post_forward_pre_backward" in told
    assert "checkpointing" in told


def test_the_optimizer_s_part_is_named_where_memory_is_highest_after_its_step(tmp_path: Path) -> None:
    told = about_memory(tmp_path, steps_of(20, 22, 22, 23, 24))
    assert "at post_optimizer_step, after the optimizer's step: weights, gradients and what the optimizer keeps" in told


def test_a_recorded_run_whose_activations_are_half_of_its_peak_is_advised_to_save_them() -> None:
    told = recommendations(open_run(RUNS / "oversized_peak-sick").get(StepTimes))[0]
    assert "(271 MiB on average, 144 MiB above" in told
    assert "checkpointing" in told
