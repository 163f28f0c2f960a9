"""Windows come when they are due, on a busy machine too: what they may take is for the tests that speak of it."""

import pytest

from efprof.recorder.budget import sampling
from efprof.recorder.windows import windows

PLENTY_NS = 60_000_000_000
LIMITS_NS = sampling.ALLOWANCE_NS, windows.MAX_EXCESS_NS


@pytest.fixture(autouse=True)
def _plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other programs two windows may take longer than all may, and a step the CPU time of ten."""
    monkeypatch.setattr(sampling, "ALLOWANCE_NS", PLENTY_NS)
    monkeypatch.setattr(windows, "MAX_EXCESS_NS", PLENTY_NS)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What windows and their steps may take of a program of a user's."""
    monkeypatch.setattr(sampling, "ALLOWANCE_NS", LIMITS_NS[0])
    monkeypatch.setattr(windows, "MAX_EXCESS_NS", LIMITS_NS[1])
