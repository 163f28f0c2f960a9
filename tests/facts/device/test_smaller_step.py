"""The micro-batch that fits: the part that grows with the batch is cut until what is left is below what there was."""

from pathlib import Path

import pytest

from efprof.facts.device.smaller_step import MissingMemory, kept_and_usual_bytes
from efprof.units import MIB
from tests.support.builders import make_step, make_steps, write_run


def missing(
    kept_mib: int | None, *, in_use_mib: int = 900, requested_mib: int = 200, missing_mib: int = 100
) -> MissingMemory:
    return MissingMemory(
        stage="forward",
        in_use_bytes=in_use_mib * MIB,
        requested_bytes=requested_mib * MIB,
        missing_bytes=missing_mib * MIB,
        kept_bytes=None if kept_mib is None else kept_mib * MIB,
        usual_bytes=0,
    )


@pytest.mark.parametrize(
    ("kept_mib", "micro_batch", "parts"),
    [
        (100, 16, 2),  # 1000 grow with the batch, 500 of 810 are left
        (700, 16, 2),  # 400: 200 of 270
        (800, 16, 2),  # 300: 150 of 180
        (850, 16, 2),  # 250: 125 of 135
        (880, 16, 4),  # 220: 110 are more than 108, 55 are not
        (895, 6, 6),  # 205: 102 are more than 94.5, and a third would cut 2 samples off for good
        (100, 1, None),
        (None, 0, None),  # no step tells the samples
        (990, 16, None),  # more than was in use: the readings contradict each other
        (None, 16, 2),
    ],
)
def test_as_many_halves_as_it_takes(kept_mib: int | None, micro_batch: int, parts: int | None) -> None:
    assert missing(kept_mib).parts_that_fit(micro_batch) == parts


def test_a_step_that_failed_early_is_cut_by_all_it_usually_takes(tmp_path: Path) -> None:
    """200 of 1,000 MiB are in use when 100 fail; a whole step takes 800 besides the 100 that are kept."""
    sizes = [size * MIB for size in (100, 900, 900, 150, 150)]
    run = write_run(tmp_path / "run", steps=make_steps(5, allocated_bytes=sizes))
    kept_bytes, usual_bytes = kept_and_usual_bytes(run.rank_folder, "forward")
    found = MissingMemory(
        stage="forward",
        in_use_bytes=200 * MIB,
        requested_bytes=100 * MIB,
        missing_bytes=50 * MIB,
        kept_bytes=kept_bytes,
        usual_bytes=usual_bytes,
    )
    assert (found.kept_bytes, found.scaling_bytes) == (100 * MIB, 800 * MIB)
    assert found.parts_that_fit(64) == 8  # 100 of the 135 that are left


def test_in_backward_gradients_are_kept_and_after_the_first_step_the_optimizers_state(tmp_path: Path) -> None:
    sizes = [size * MIB for size in (100, 900, 900, 200, 400)]
    run = write_run(tmp_path / "run", steps=[make_step(0, allocated_bytes=sizes)])

    def kept(stage: str | None) -> int:
        return (kept_and_usual_bytes(run.rank_folder, stage)[0] or 0) // MIB

    assert (kept("forward"), kept("backward"), kept(None)) == (300, 400, 400)
