"""Programs that were written for other tests are recorded on a simulated device as on the CPU."""

from pathlib import Path

import pytest

from tests.simulated_cuda.programs import differences, names

SOON = ("energy_flow",)
"""In `make test`; all others in `make stability`, since each takes twelve seconds."""
NAMES = [name if name in SOON else pytest.param(name, marks=pytest.mark.long) for name in names()]


@pytest.mark.parametrize("name", NAMES)
def test_steps_micro_batches_and_losses_are_those_of_the_cpu_and_nothing_waits(name: str, tmp_path: Path) -> None:
    assert differences(name, tmp_path) == []
