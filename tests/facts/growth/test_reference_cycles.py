"""How many collections it takes to say that garbage piles up."""

from pathlib import Path

import pytest

from efprof.facts.growth.reference_cycles import CycleSawtooth
from efprof.units import MIB
from tests.audits.test_uncollected_cycle import sawtooth_run


@pytest.mark.parametrize(
    ("num_steps", "per_step", "piles_up"),
    [
        pytest.param(29, 12 * MIB, True, id="two that freed more than half of all that was allocated"),
        pytest.param(29, 4 * MIB, False, id="two that freed less may be chance"),
        pytest.param(30, 4 * MIB, True, id="three are not"),
        pytest.param(19, 12 * MIB, False, id="one frees what the start of the program left"),
    ],
)
def test_two_collections_are_enough_where_they_free_most_of_the_memory(
    num_steps: int, per_step: int, piles_up: bool, tmp_path: Path
) -> None:
    """Every ten steps one comes, and 100 MiB stay; the cycle was not found."""
    run = sawtooth_run(tmp_path / "run", links=(), num_steps=num_steps, per_step=per_step)
    assert run.get(CycleSawtooth).piles_up == piles_up
