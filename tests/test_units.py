"""How amounts are written for people."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efprof.units import (
    MAX_BYTES,
    MIB,
    format_bytes,
    format_change,
    format_duration,
    format_interval,
    format_value,
    parse_bytes,
)


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.04 seconds"),
        (1.0, "1 second"),
        (43.4, "43 seconds"),
        (59.9, "60 seconds"),
        (60.0, "1 minute"),
        (239.0, "4 minutes"),
        (5_400.0, "1.5 hours"),
        (86_400.0, "1 day"),
        (3.456 * 86_400, "3.5 days"),
        (363.4 * 86_400, "360 days"),
    ],
)
def test_a_predicted_span_of_time_has_two_digits_and_its_largest_unit(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_intervals_that_read_the_same_are_left_out_and_a_size_has_the_unit_that_fits() -> None:
    assert format_interval(33.0 * MIB, 33.01 * MIB, "bytes") == ""
    assert format_interval(33.0 * MIB, 33.1 * MIB, "bytes") == "33.0 MiB to 33.1 MiB"
    sizes = [2**power for power in (0, 10, 20, 30, 40, 50)]
    assert [format_bytes(size) for size in sizes] == ["1 B", "1.00 KiB", "1.00 MiB", "1.00 GiB", "1.00 TiB", "1024 TiB"]


@given(st.integers(min_value=0, max_value=MAX_BYTES - MAX_BYTES // 100))
def test_a_size_that_is_printed_is_read_as_the_same_to_the_digits_printed(num_bytes: int) -> None:
    assert abs(parse_bytes(format_bytes(num_bytes)) - num_bytes) <= num_bytes * 0.005 + 0.5


@given(
    st.integers(min_value=0, max_value=10**6),
    st.sampled_from(["", "B", "K", "KiB", "KB", "M", "MiB", "MB", "G", "GiB", "GB", "T", "TiB", "TB"]),
    st.sampled_from(["", " "]),
    st.sampled_from([str.upper, str.lower, str]),
)
def test_a_letter_is_binary_alone_or_with_ib_and_decimal_with_b_in_any_case(
    number: int, unit: str, space: str, written: Callable[[str], str]
) -> None:
    base = 1000 if unit in ("KB", "MB", "GB", "TB") else 1024
    expected = number * base ** "BKMGT".index(unit[0] if unit else "B")
    assert parse_bytes(written(f"{number}{space}{unit}")) == expected


@pytest.mark.parametrize(
    "text", ["", "GiB", "much", "-1GiB", "1e9", "24Gigs", "24iB", "1,5GiB", "nan", "9" * 400, "8388608TiB"]
)
def test_what_is_no_size_that_anything_has_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no size"):
        parse_bytes(text)
