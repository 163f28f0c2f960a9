"""How amounts are written for people."""

import math

import pytest

from efprof.units import MIB, format_about, format_change, format_interval, format_value


@pytest.mark.parametrize(
    ("effect", "text"),
    [
        (0.124, "+12.4 %"),
        (-0.08, "-8.0 %"),
        (-0.0001, "0.0 %"),
        (1.0, "+100.0 %"),
        (1.5, "2.5x"),
        (26.147, "27.1x"),
        (104.139, "105x"),
    ],
)
def test_a_change_is_a_percentage_until_it_more_than_doubles(effect: float, text: str) -> None:
    assert format_change(effect) == text


@pytest.mark.parametrize("unit", ["bytes", "bytes_per_step", "ms", "s", "percent", "ratio", "count", ""])
def test_what_is_not_finite_is_written_by_name_in_every_unit(unit: str) -> None:
    assert [format_value(value, unit) for value in (math.nan, math.inf, -math.inf)] == ["nan", "inf", "-inf"]


def test_an_interval_whose_ends_read_the_same_is_left_out() -> None:
    assert format_interval(33.0 * MIB, 33.01 * MIB, "bytes") == ""
    assert format_interval(33.0 * MIB, 33.1 * MIB, "bytes") == "33.0 MiB to 33.1 MiB"


def test_a_prediction_has_two_digits() -> None:
    assert (format_about(50_645), format_about(2_214), format_about(87)) == ("~51,000", "~2,200", "~87")
