"""Programs that were written for other tests are recorded on a simulated device as on the CPU."""

from pathlib import Path

import pytest

from tests.simulated_cuda.programs import differences, names


@pytest.mark.long
@pytest.mark.parametrize("name", names())
def test_steps_micro_batches_and_losses_are_those_of_the_cpu_and_nothing_waits(name: str, tmp_path: Path) -> None:
    assert differences(name, tmp_path) == []
