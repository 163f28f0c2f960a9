"""The list of what runs on a simulated device, and of what does not, is of tests that there are."""

from pathlib import Path

import pytest

from tests.recorder.on_a_device import FAIL, LEFT_OUT, RUN

HERE = Path(__file__).parent
TEXTS = {path.stem: path.read_text() for path in HERE.rglob("test_*.py") if path != Path(__file__)}
RECORD_HERE = ("record_here(", "open_session(", "running_session(", "record_both_ways(")


def test_every_module_that_records_in_this_process_runs_there_or_has_a_reason_not_to() -> None:
    recording = {name for name, text in TEXTS.items() if any(call in text for call in RECORD_HERE)}
    left_out = [name for names in LEFT_OUT.values() for name in names]
    assert sorted(recording) == sorted([*RUN, *left_out])


@pytest.mark.parametrize("listed", FAIL)
def test_what_cannot_run_there_is_a_test(listed: str) -> None:
    """That it fails there is asserted where it runs, in `make stability`."""
    test, _, case = listed.partition("[")
    module, _, function = test.partition("::")
    assert module in RUN
    assert f"def {function}(" in TEXTS[module]
    assert case.removesuffix("]") in TEXTS[module]
