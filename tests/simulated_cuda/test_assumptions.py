"""On the simulated device all holds that is taken for granted of a real one."""

import contextlib
import io
from collections.abc import Iterator

import pytest

from tests.simulated_cuda.assumptions import *  # noqa: F403
from tests.simulated_cuda.cuda import SimulatedCuda
from tests.simulated_cuda.starts import LAZY_STARTS, told_of_a_lazy_start


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with SimulatedCuda(2).in_place():
        yield


@pytest.fixture
def cycles() -> int:
    """Some hundredths of a second."""
    return 10**8


@pytest.fixture
def many_cycles() -> int:
    return 10**10


@pytest.mark.parametrize("name", LAZY_STARTS)
def test_cuda_starts_with_the_first_call_that_needs_it(name: str) -> None:
    program, told = LAZY_STARTS[name], io.StringIO()
    with contextlib.redirect_stdout(told):
        exec(program, {})
    assert told.getvalue().split() == told_of_a_lazy_start(name)
