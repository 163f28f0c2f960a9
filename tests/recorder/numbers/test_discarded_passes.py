"""Which passes are told to be thrown away, and how many."""

from functools import partial
from pathlib import Path

import pytest

from efprof.artifacts.events import CollectorStopped, DiscardedPasses
from tests.recorder.programs.discarding_programs import (
    NUM_BATCHES,
    NUM_UPDATES,
    Program,
    accumulate,
    adversaries,
    attack_first,
    average_by_hand,
    average_weights,
    be_aware_of_sharpness,
    estimate_information,
    project_conflicts,
    skip_bad_batches,
    try_each_loss,
    with_closure,
)
from tests.recorder.recording import HARDLY_ANY_IN_FULL, line_of, record_here

PROGRAMS = Path(__file__).parents[1] / "programs" / "discarding_programs.py"
NUM_SEEN = NUM_UPDATES - 1
"""Before its first update, an optimizer is not known."""


def told(folder: Path, program: Program, **options: object) -> list[DiscardedPasses]:
    recorded = record_here(folder, program, **options)
    assert recorded.events(CollectorStopped) == []
    latest = {event.site: event for event in recorded.events(DiscardedPasses)}
    return list(latest.values())


def shares(folder: Path, program: Program) -> list[float]:
    return [event.num_discarding / event.num_updates for event in told(folder, program)]


@pytest.mark.parametrize("way", ["each batch", "in place", "by hand"])
@pytest.mark.parametrize("settings", [{}, {"clips": True}, {"scales": True}, {"clips": True, "scales": True}])
def test_passes_that_are_cleared_before_the_next_of_their_line_are_counted(
    way: str, settings: dict[str, bool], tmp_path: Path
) -> None:
    (event,) = told(tmp_path, partial(accumulate, way=way, **settings))
    assert event.site.split(":")[1:] == [str(line_of(PROGRAMS, "backward")), "accumulate"]
    assert (event.num_updates, event.num_discarding, event.num_rewritten) == (NUM_SEEN, NUM_SEEN, 0)
    assert (event.num_passes, event.num_discarded) == (NUM_BATCHES * NUM_SEEN, (NUM_BATCHES - 1) * NUM_SEEN)


def test_none_is_where_gradients_are_accumulated(tmp_path: Path) -> None:
    (event,) = told(tmp_path, partial(accumulate, way="none"))
    assert (event.num_updates, event.num_passes, event.num_discarded) == (NUM_SEEN, NUM_BATCHES * NUM_SEEN, 0)


def test_light_steps_in_between_change_no_share(tmp_path: Path) -> None:
    def train_on() -> None:
        for _ in range(20):
            accumulate()

    (event,) = told(tmp_path, train_on, overhead=HARDLY_ANY_IN_FULL)
    assert event.num_discarding == event.num_updates


def test_what_the_program_writes_to_the_gradients_that_are_left_is_told(tmp_path: Path) -> None:
    (event,) = told(tmp_path, average_by_hand)
    assert (event.num_discarding, event.num_rewritten) == (NUM_SEEN, NUM_SEEN)


@pytest.mark.parametrize(
    "program",
    [
        project_conflicts,
        be_aware_of_sharpness,
        partial(estimate_information, in_each=True),
        attack_first,
        adversaries,
        average_weights,
    ],
)
def test_none_is_thrown_away_where_the_program_uses_what_it_clears(program: Program, tmp_path: Path) -> None:
    assert shares(tmp_path, program) == [0.0]


@pytest.mark.parametrize("program", [estimate_information, skip_bad_batches])
def test_what_is_cleared_now_and_then_is_a_small_share(program: Program, tmp_path: Path) -> None:
    (share,) = shares(tmp_path, program)
    assert 0 < share < 0.6


@pytest.mark.parametrize("program", [with_closure, partial(with_closure, "LBFGS"), try_each_loss])
def test_a_pass_in_the_closure_of_a_step_is_that_step_s(program: Program, tmp_path: Path) -> None:
    assert told(tmp_path, program) == []
