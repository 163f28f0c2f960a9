"""Rounding, pools and segment sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efprof.facts.allocator.settings import (
    MIB,
    NUM_INTERVALS,
    AllocatorSettings,
    is_small,
    page_bytes,
    rounded_bytes,
    segment_bytes,
)

GIB = 1024 * MIB
sizes = st.integers(0, 40).flatmap(lambda exponent: st.integers(1, 1 << exponent))
divisions = st.lists(st.sampled_from([0, 1, 2, 4, 8, 64, 4096]), min_size=NUM_INTERVALS, max_size=NUM_INTERVALS)


def with_divisions(*numbers: int) -> AllocatorSettings:
    return AllocatorSettings(divisions=numbers)


@pytest.mark.parametrize(
    ("requested", "rounded"), [(1, 512), (511, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512), (3 * MIB, 3 * MIB)]
)
def test_a_block_is_a_multiple_of_512_bytes(requested: int, rounded: int) -> None:
    assert rounded_bytes(requested, AllocatorSettings()) == rounded


@pytest.mark.parametrize(
    ("requested", "rounded"),
    [
        (5000, 5120),  # steps of 1024 between 4096 and 8192
        (100 * MIB, 112 * MIB),  # steps of 16 MiB between 64 and 128
        (112 * MIB, 112 * MIB),
        (112 * MIB + 1, 128 * MIB),
        (64 * MIB, 64 * MIB),  # a power of two stays
        (300, 512),
        (1200, 1536),
        (2048, 2048),
        (2049, 2560),  # up to 512 bytes for each there are none
    ],
)
def test_divisions_cut_the_way_to_the_next_power_of_two_into_equal_steps(requested: int, rounded: int) -> None:
    assert rounded_bytes(requested, with_divisions(*[4] * NUM_INTERVALS)) == rounded


@pytest.mark.parametrize("number", [0, 1])
def test_one_division_and_none_change_nothing(number: int) -> None:
    assert rounded_bytes(100 * MIB + 1, with_divisions(*[number] * NUM_INTERVALS)) == 100 * MIB + 512


@pytest.mark.parametrize(
    ("requested", "interval"),
    [(700_001, 0), (MIB + 1, 0), (1_900_000, 0), (2 * MIB + 1, 1), (300 * MIB, 8), (33 * GIB, 15), (100 * GIB, 15)],
)
def test_each_power_of_two_from_a_mib_on_has_its_own_divisions_and_what_is_beyond_has_the_nearest(
    requested: int, interval: int
) -> None:
    elsewhere = with_divisions(*[2 if index != interval else 0 for index in range(NUM_INTERVALS)])
    here = with_divisions(*[2 if index == interval else 0 for index in range(NUM_INTERVALS)])
    assert rounded_bytes(requested, elsewhere) == rounded_bytes(requested, AllocatorSettings())
    assert rounded_bytes(requested, here) > rounded_bytes(requested, AllocatorSettings())


@given(sizes, divisions)
def test_a_block_holds_the_request_and_is_a_multiple_of_512_bytes_under_any_divisions(
    requested: int, numbers: list[int]
) -> None:
    rounded = rounded_bytes(requested, with_divisions(*numbers))
    assert rounded >= requested
    assert rounded % 512 == 0


def test_a_block_is_small_up_to_one_mib_as_rounded() -> None:
    assert is_small(rounded_bytes(MIB - 100, AllocatorSettings()))
    assert is_small(rounded_bytes(MIB, AllocatorSettings()))
    assert not is_small(rounded_bytes(MIB + 1, AllocatorSettings()))


@pytest.mark.parametrize(
    ("rounded", "segment"),
    [
        (512, 2 * MIB), (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB), (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB), (10 * MIB + 512, 12 * MIB), (101 * MIB, 102 * MIB),
    ],
)  # fmt: skip
def test_a_segment_is_of_two_mib_or_twenty_or_as_large_as_the_request(rounded: int, segment: int) -> None:
    assert segment_bytes(rounded, AllocatorSettings()) == segment


def test_only_segments_of_twenty_mib_follow_large_segment_size() -> None:
    settings = AllocatorSettings(large_segment_bytes=64 * MIB)
    assert [segment_bytes(size, settings) for size in (MIB, 5 * MIB, 12 * MIB)] == [2 * MIB, 64 * MIB, 12 * MIB]


def test_an_expandable_segment_grows_by_two_mib_of_small_blocks_and_by_large_segments_of_others() -> None:
    settings = AllocatorSettings(expandable_segments=True, large_segment_bytes=64 * MIB)
    assert page_bytes(settings, is_small_pool=True) == 2 * MIB
    assert page_bytes(settings, is_small_pool=False) == 64 * MIB
