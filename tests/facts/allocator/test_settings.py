"""PYTORCH_CUDA_ALLOC_CONF: read as torch 2.15 reads it, refused where torch refuses it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efprof.artifacts.snapshot import Settings
from efprof.facts.allocator.settings import (
    HOST_KEYS,
    KNOWN_KEYS,
    MIB,
    NUM_INTERVALS,
    AllocatorSettings,
    BadConfiguration,
    in_effect,
    parse_configuration,
    recorded_settings,
)


def intervals(*runs: tuple[int, int]) -> tuple[int, ...]:
    """So many intervals with this number, one run after another."""
    numbers = [number for count, number in runs for _ in range(count)]
    assert len(numbers) == NUM_INTERVALS
    return tuple(numbers)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  ", AllocatorSettings()),
        ("expandable_segments:False", AllocatorSettings()),
        ("expandable_segments:True", AllocatorSettings(expandable_segments=True)),
        ("max_split_size_mb:128", AllocatorSettings(max_split_bytes=128 * MIB)),
        ("large_segment_size_mb:11", AllocatorSettings(large_segment_bytes=11 * MIB)),
        ("max_non_split_rounding_mb:20", AllocatorSettings(max_non_split_rounding_bytes=20 * MIB)),
        ("garbage_collection_threshold:0.8", AllocatorSettings(garbage_collection_threshold=0.8)),
        ("per_process_memory_fraction:0.5", AllocatorSettings(memory_fraction=0.5)),
        ("per_process_memory_fraction:1", AllocatorSettings(memory_fraction=1.0)),
        ("roundup_power2_divisions:8", AllocatorSettings(divisions=intervals((16, 8)))),
    ],
)
def test_each_key_sets_what_it_names_and_nothing_else(text: str, expected: AllocatorSettings) -> None:
    assert parse_configuration(text) == expected


@pytest.mark.parametrize("key", sorted(HOST_KEYS - {"backend"}))
def test_what_concerns_host_memory_changes_nothing(key: str) -> None:
    assert parse_configuration(f"{key}:1,max_split_size_mb:64") == AllocatorSettings(max_split_bytes=64 * MIB)


def test_a_reserve_of_addresses_loses_no_other_setting_that_a_snapshot_was_made_with() -> None:
    text = (
        "expandable_segments_reserve:40G,expandable_segments_reserve_by_class:[kv:0.5,rest:1G],large_segment_size_mb:64"
    )
    assert recorded_settings(Settings(configuration=text), is_expandable=False).large_segment_bytes == 64 * MIB


@pytest.mark.parametrize(
    "text",
    [
        "expandable_segments:True,max_split_size_mb:128",
        " expandable_segments : True , max_split_size_mb : 128 ",
        "max_split_size_mb:128,expandable_segments:True,",
        "max_split_size_mb:64,,expandable_segments:True,max_split_size_mb:128",
    ],
)
def test_order_blanks_and_commas_too_many_do_not_matter_and_the_last_of_two_counts(text: str) -> None:
    assert parse_configuration(text) == AllocatorSettings(expandable_segments=True, max_split_bytes=128 * MIB)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("[256:1,512:2,1024:4,>:8]", intervals((9, 1), (1, 2), (1, 4), (5, 8))),
        ("[256:4,1024:2]", intervals((9, 4), (1, 0), (1, 2), (5, 0))),  # what lies between two is not rounded
        ("[65536:2]", intervals((16, 2))),  # what is beyond the last interval means the last
        ("[>:8]", intervals((1, 0), (15, 8))),  # '>' is what comes after the last one named, the first if none is
    ],
)
def test_divisions_may_be_listed_by_interval(value: str, expected: tuple[int, ...]) -> None:
    found = parse_configuration(f"max_split_size_mb:64,roundup_power2_divisions:{value},expandable_segments:True")
    assert found == AllocatorSettings(max_split_bytes=64 * MIB, divisions=expected, expandable_segments=True)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("max_split_size:128", "max_split_size"),
        ("max_split_size_mb", "max_split_size_mb"),
        ("max_split_size_mb:19", "at least 20"),
        ("max_split_size_mb:128.5", "128.5"),
        ("max_split_size_mb:63,large_segment_size_mb:64", "at least 64"),
        ("large_segment_size_mb:10", "at least 11"),
        ("max_non_split_rounding_mb:19", "at least 20"),
        ("large_segment_size_mb:64,max_non_split_rounding_mb:32", "at least 64"),
        ("expandable_segments:true", "'True' or 'False'"),
        ("garbage_collection_threshold:1", "between 0 and 1"),
        ("garbage_collection_threshold:often", "often"),
        ("per_process_memory_fraction:1.01", "between 0 and 1"),
        ("per_process_memory_fraction:-0.5", "between 0 and 1"),
        ("roundup_power2_divisions:3", "power of two"),
        ("roundup_power2_divisions:[256:3]", "power of two"),
        ("roundup_power2_divisions:[256]", "power of two"),
        ("roundup_power2_divisions:[256:1", "bracket"),
        ("expandable_segments=True", "settings are written 'key:value'"),
    ],
)
def test_what_torch_refuses_is_refused_and_named(text: str, named: str) -> None:
    with pytest.raises(BadConfiguration) as refusal:
        parse_configuration(text)
    assert named in str(refusal.value)


def test_a_misspelt_key_is_answered_with_the_one_that_was_meant_or_all_there_are() -> None:
    with pytest.raises(BadConfiguration, match="did you mean 'expandable_segments'"):
        parse_configuration("expandable_segment:True")
    with pytest.raises(BadConfiguration) as refusal:
        parse_configuration("gamma:0.9")
    assert all(key in str(refusal.value) for key in KNOWN_KEYS)


pieces = st.sampled_from([*sorted(KNOWN_KEYS), ":", ",", "[", "]", ">", "True", "64", "0.5", "-1", " ", "²", "x"])


@given(st.one_of(st.text(), st.lists(pieces).map("".join)))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        settings = parse_configuration(text)
    except BadConfiguration:
        return
    assert len(settings.divisions) == NUM_INTERVALS
    assert settings.max_split_bytes is None or settings.max_split_bytes >= settings.large_segment_bytes


def test_a_threshold_needs_a_fraction_and_a_block_too_large_to_split_a_large_segment_s_slack() -> None:
    assert in_effect(AllocatorSettings(garbage_collection_threshold=0.5)) == AllocatorSettings()
    limited = AllocatorSettings(garbage_collection_threshold=0.5, memory_fraction=0.9)
    assert in_effect(limited) == limited
    assert AllocatorSettings(large_segment_bytes=64 * MIB).oversize_slack_bytes == 64 * MIB
    assert AllocatorSettings(max_non_split_rounding_bytes=30 * MIB).oversize_slack_bytes == 30 * MIB


def test_what_was_set_later_comes_before_what_the_text_says_and_the_segments_tell_where_nothing_else_does() -> None:
    for is_expandable in (False, True):
        settings = recorded_settings(None, is_expandable=is_expandable)
        assert settings == AllocatorSettings(expandable_segments=is_expandable)
    recorded = Settings(
        configuration="expandable_segments:True,max_split_size_mb:64,garbage_collection_threshold:0.5",
        expandable_segments=False, max_split_size=128 * MIB, garbage_collection_threshold=0.75,
    )  # fmt: skip
    assert recorded_settings(recorded, is_expandable=True) == AllocatorSettings(
        max_split_bytes=128 * MIB, garbage_collection_threshold=0.75
    )
    text = "large_segment_size_mb:64,max_non_split_rounding_mb:128,per_process_memory_fraction:0.5"
    assert recorded_settings(Settings(configuration=text), is_expandable=False) == AllocatorSettings(
        large_segment_bytes=64 * MIB, max_non_split_rounding_bytes=128 * MIB, memory_fraction=0.5
    )
    recorded = Settings(configuration="no such thing", expandable_segments=True)
    assert recorded_settings(recorded, is_expandable=False) == AllocatorSettings(expandable_segments=True)


def test_recorded_divisions_are_by_the_mib_of_their_interval_and_the_largest_number_is_no_limit() -> None:
    recorded = Settings(roundup_power2_divisions={"1": 0, "2": 4, "32768": 8})
    assert recorded_settings(recorded, is_expandable=False).divisions == intervals((1, 0), (1, 4), (13, 0), (1, 8))
    recorded = Settings(roundup_power2_divisions={"²": 8})
    assert recorded_settings(recorded, is_expandable=False).divisions == intervals((16, 0))
    for number in (-1, (1 << 63) - 1, (1 << 64) - 1):  # no limit to splitting
        assert recorded_settings(Settings(max_split_size=number), is_expandable=False).max_split_bytes is None


def test_the_driver_s_own_allocator_is_not_foretold() -> None:
    with pytest.raises(BadConfiguration, match="keeps none of these rules"):
        parse_configuration("backend:cudaMallocAsync")
    assert parse_configuration("backend:native") == AllocatorSettings()
