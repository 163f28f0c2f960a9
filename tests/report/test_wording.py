"""Phrases that every rendering shares."""

from typing import Any

from efprof.model import Gain
from efprof.report.wording import gain_phrase


def phrase(**fields: Any) -> str:
    return gain_phrase(Gain(explanation="", **fields), None, None)


def test_what_was_read_up_to_a_step_only_is_the_least_of_the_whole_run() -> None:
    bound = {"basis": "measured bound", "peak_bytes": 300, "until_step": 1023}
    assert phrase(**bound, peak_bytes_interval=(250.0, 390.0)) == (
        "saves at least 250 B of peak memory up to step 1,023, from measurements"
    )
    share = gain_phrase(Gain(explanation="", **bound, peak_bytes_interval=(250.0, 390.0)), None, 1000)
    assert "up to step 1,023, 25 % of the recorded peak" in share
    assert phrase(**bound, peak_bytes_interval=(0.0, 390.0)) == (
        "saves about 300 B (0 B to 390 B) of peak memory up to step 1,023, from measurements"
    )


def test_a_bound_whose_interval_reaches_beyond_it_is_no_upper_limit() -> None:
    bound = {"basis": "measured bound", "peak_bytes": 300}
    assert phrase(**bound).startswith("saves at most 300 B")
    assert phrase(**bound, peak_bytes_interval=(250.0, 300.0)).startswith("saves at most 300 B")
    assert phrase(**bound, peak_bytes_interval=(250.0, 390.0)) == (
        "saves about 300 B (250 B to 390 B) of peak memory, from measurements"
    )
    assert phrase(basis="measured bound", step_ms=2.0, step_ms_interval=(1.0, 3.0)).startswith("saves about 2.00 ms")


def test_what_a_late_step_saves_is_a_share_of_a_late_step() -> None:
    late = Gain(basis="measured bound", explanation="", step_ms=30.0, late_step_ms=40.0)
    assert gain_phrase(late, 20.0, None) == "saves at most 30.0 ms per step, 75 % of a late step, from measurements"
