"""How severe a finding is: by what it costs, by how soon memory is full, and by its harm."""

import dataclasses
import math

import pytest

from efprof.model import Finding, Fix, Gain, Severity, SourceLine, rated, severity_by_share, severity_by_time_left
from efprof.model.severity import DAY_S, MONTH_S, most_severe, severity_by_gain

STEP_MS, PEAK_BYTES = 10.0, 1000


def gain(**fields: object) -> Gain:
    return Gain(basis="model", explanation="", **fields)  # type: ignore[arg-type]


def finding(*, severity: Severity = "low", may_be_filling: bool = False, **fields: object) -> Finding:
    return Finding(
        blame=SourceLine(file="train.py", line=1, function="main", text=""),
        category="time",
        headline="h",
        message="m",
        why="w",
        fix=Fix.by_hand("f"),
        gain=gain(**fields),
        evidence=(),
        severity=severity,
        may_be_filling=may_be_filling,
    )


def test_a_fifth_is_high_a_twentieth_medium_and_less_low() -> None:
    assert [severity_by_share(share) for share in (1.0, 0.2, 0.199, 0.05, 0.049, 0.0)] == [
        "high", "high", "medium", "medium", "low", "low",
    ]  # fmt: skip


def test_memory_that_is_full_within_a_day_is_high_and_within_a_month_medium() -> None:
    seconds = (0.0, DAY_S - 1, DAY_S, MONTH_S - 1, MONTH_S, math.inf)
    assert [severity_by_time_left(one) for one in seconds] == ["high", "high", "medium", "medium", "low", "low"]


@pytest.mark.parametrize(
    ("fields", "severity"),
    [
        ({"step_ms": 2.0}, "high"),
        ({"step_ms": 1.9}, "medium"),
        ({"step_ms": 0.5}, "medium"),
        ({"step_ms": 0.4}, "low"),
        ({"peak_bytes": 200}, "high"),
        ({"peak_bytes": 199}, "medium"),
        ({"peak_bytes": 49}, "low"),
        ({"step_ms": 0.1, "peak_bytes": 300}, "high"),
        ({"step_ms": 3.0, "peak_bytes": 1}, "high"),
        ({}, "low"),
        ({"step_ms": 0.0, "peak_bytes": 0}, "low"),
    ],
)
def test_the_larger_share_of_the_step_or_of_the_peak_counts(fields: dict[str, float], severity: Severity) -> None:
    assert severity_by_gain(gain(**fields), STEP_MS, PEAK_BYTES) == severity


@pytest.mark.parametrize(
    ("fields", "severity"),
    [
        ({"step_ms": 9.0, "step_ms_interval": (0.0, 9.0)}, "medium"),
        ({"step_ms": 9.0, "step_ms_interval": (-1.0, 9.5)}, "medium"),
        ({"step_ms": 9.0, "step_ms_interval": (0.1, 9.0)}, "high"),
        ({"step_ms": 0.4, "step_ms_interval": (0.0, 0.4)}, "low"),
        ({"peak_bytes": 900, "peak_bytes_interval": (0.0, 900.0)}, "medium"),
        ({"peak_bytes": 900, "peak_bytes_interval": (1.0, 900.0)}, "high"),
        ({"step_ms": 9.0, "step_ms_interval": (0.0, 9.0), "peak_bytes": 900}, "high"),
    ],
)
def test_a_gain_that_may_be_nothing_is_medium_at_most(fields: dict[str, object], severity: Severity) -> None:
    assert severity_by_gain(gain(**fields), STEP_MS, PEAK_BYTES) == severity


def test_where_steps_grow_the_gain_is_a_share_of_a_late_one() -> None:
    assert severity_by_gain(gain(step_ms=5.0), STEP_MS, None) == "high"
    assert severity_by_gain(gain(step_ms=5.0, late_step_ms=50.0), STEP_MS, None) == "medium"
    assert severity_by_gain(gain(step_ms=5.0, late_step_ms=500.0), STEP_MS, None) == "low"
    assert severity_by_gain(gain(step_ms=5.0, late_step_ms=20.0), None, None) == "high", "no other step is known"


def test_memory_is_a_share_of_what_it_is_said_to_be_one_of() -> None:
    assert severity_by_gain(gain(peak_bytes=300), None, PEAK_BYTES) == "high"
    assert severity_by_gain(gain(peak_bytes=300, of_bytes=3000), None, PEAK_BYTES) == "medium"
    assert severity_by_gain(gain(peak_bytes=300, of_bytes=300_000), None, PEAK_BYTES) == "low"
    assert severity_by_gain(gain(peak_bytes=300, of_bytes=400), None, None) == "high", "no peak was read"


def test_without_a_step_or_a_peak_to_compare_with_nothing_is_severe() -> None:
    assert severity_by_gain(gain(step_ms=5.0, peak_bytes=300), None, None) == "low"
    assert severity_by_gain(gain(step_ms=5.0, peak_bytes=300), 0.0, 0) == "low"


def test_harm_and_gain_raise_a_finding_and_neither_lowers_it() -> None:
    assert rated(finding(step_ms=9.0), STEP_MS, None).severity == "high"
    assert rated(finding(severity="medium", step_ms=9.0), STEP_MS, None).severity == "high"
    assert rated(finding(severity="high", step_ms=0.1), STEP_MS, None).severity == "high"
    assert rated(finding(severity="medium"), STEP_MS, None).severity == "medium"
    assert rated(finding(), STEP_MS, PEAK_BYTES).severity == "low"
    assert [most_severe("low", "medium"), most_severe("high", "low"), most_severe("low")] == ["medium", "high", "low"]


def test_what_may_still_be_filling_is_low_whatever_it_costs() -> None:
    assert rated(finding(severity="high", may_be_filling=True, peak_bytes=999), STEP_MS, PEAK_BYTES).severity == "low"


def test_nothing_else_of_the_finding_is_changed() -> None:
    before = finding(step_ms=9.0)
    assert dataclasses.replace(rated(before, STEP_MS, None), severity="low") == before
