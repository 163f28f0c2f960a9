"""The model of the allocator: what holds after any program, and its rules one by one."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efprof.artifacts.snapshot import DEFAULT_POOL
from efprof.facts.allocator.blocks import Block, Pool
from efprof.facts.allocator.settings import MIB, NUM_INTERVALS, AllocatorSettings, is_small, rounded_bytes
from tests.facts.allocator.recording import Recording

GRAPH_POOL = (0, 1)
STREAMS = (0, 7)

DEFAULT = AllocatorSettings()
EXPANDABLE = AllocatorSettings(expandable_segments=True)
LIMITED = AllocatorSettings(max_split_bytes=20 * MIB)

EVERY_KIND = {
    "default": DEFAULT,
    "expandable": EXPANDABLE,
    "max_split": AllocatorSettings(max_split_bytes=40 * MIB),
    "max_split and expandable": AllocatorSettings(max_split_bytes=40 * MIB, expandable_segments=True),
    "max_non_split_rounding": AllocatorSettings(
        max_split_bytes=20 * MIB, max_non_split_rounding_bytes=100 * MIB, large_segment_bytes=20 * MIB
    ),
    "roundup": AllocatorSettings(divisions=(4,) * NUM_INTERVALS),
    "large segments": AllocatorSettings(large_segment_bytes=64 * MIB),
    "large pages": AllocatorSettings(large_segment_bytes=64 * MIB, expandable_segments=True),
    "garbage collected": AllocatorSettings(garbage_collection_threshold=0.5, memory_fraction=0.75),
    "garbage collected with max_split": AllocatorSettings(
        garbage_collection_threshold=0.5, memory_fraction=0.75, max_split_bytes=40 * MIB
    ),
}


class Device(Recording):
    """Keeps the ranges that the driver gave, too."""

    def __init__(self, of: AllocatorSettings, *, capacity: int | None = None) -> None:
        super().__init__(of, capacity=capacity)
        self.ranges: dict[int, int] = {}

    def free(self, *blocks: Block) -> None:
        for block in blocks:
            super().free(block)

    def _new_range(self, num_bytes: int) -> int:
        address = super()._new_range(num_bytes)
        self.ranges[address] = num_bytes
        return address


Operation = tuple[str, int, int, tuple[int, int]]
"""What to do; the bytes or the number of a block, the stream and the pool."""

sizes = st.one_of(st.integers(1, MIB), st.integers(MIB, 12 * MIB), st.integers(1, 120).map(lambda number: number * MIB))
operations = st.one_of(
    st.tuples(st.just("malloc"), sizes, st.sampled_from(STREAMS), st.sampled_from([DEFAULT_POOL] * 3 + [GRAPH_POOL])),
    st.tuples(st.just("free"), st.integers(0, 1000), st.just(0), st.just(DEFAULT_POOL)),
    st.tuples(st.just("malloc"), sizes, st.just(0), st.just(DEFAULT_POOL)),
    st.tuples(st.just("free"), st.integers(0, 1000), st.just(0), st.just(DEFAULT_POOL)),
    st.tuples(st.just("release_cached"), st.just(0), st.just(0), st.just(DEFAULT_POOL)),
)
programs = st.one_of(st.lists(operations, max_size=10), st.lists(operations, min_size=30, max_size=80))
capacities = st.sampled_from([None, 100 * MIB, 300 * MIB])


def run(device: Device, program: list[Operation]) -> Iterator[None]:
    for what, number, stream, private_id in program:
        if what == "malloc":
            device.attempt(number, stream, private_id)
        elif what == "release_cached":
            device.allocator.release_cached()
        elif device.live:
            device.free(device.live[number % len(device.live)])
        yield


def chains_of(device: Device) -> list[list[Block]]:
    """The blocks of each range, from its beginning."""
    pools = device.allocator.pools
    known = [*device.live]
    known += [block for pool in pools for block in pool.free_blocks()]
    known += [block for pool in pools for stream in STREAMS for block in pool.unmapped_of(stream)]
    return [chain_from(block) for block in known if block.previous is None]


def chain_from(first: Block) -> list[Block]:
    chain, block = [first], first.following
    while block is not None:
        assert block.previous is chain[-1]
        chain.append(block)
        block = block.following
    return chain


def assert_ranges_are_filled_without_gap_or_overlap(device: Device) -> None:
    for chain in chains_of(device):
        assert chain[0].address == chain[0].range.address
        assert sum(block.size for block in chain) == device.ranges[chain[0].address]
        for block, following in pairwise(chain):
            assert block.address + block.size == following.address
            assert block.range is following.range
            assert block.pool is following.pool
            assert block.stream == following.stream


def assert_bytes_add_up(device: Device) -> None:
    blocks = [block for chain in chains_of(device) for block in chain]
    assert all(block.size > 0 for block in blocks)
    assert device.allocator.allocated == sum(block.size for block in device.live)
    assert device.allocator.reserved == sum(block.size for block in blocks if block.is_mapped)
    assert device.allocator.peak_reserved >= device.allocator.reserved
    assert {id(block) for block in device.live} == {id(block) for block in blocks if block.is_allocated}


def assert_pools_hold_what_nobody_has(device: Device) -> None:
    blocks = [block for chain in chains_of(device) for block in chain if not block.is_allocated]
    for pool in device.allocator.pools:
        free, unmapped = pool.free_blocks(), [block for stream in STREAMS for block in pool.unmapped_of(stream)]
        of_pool = [block for block in blocks if block.pool is pool]
        assert {id(block) for block in free} == {id(block) for block in of_pool if block.is_mapped}
        assert {id(block) for block in unmapped} == {id(block) for block in of_pool if not block.is_mapped}


def assert_neighbours_are_merged(device: Device) -> None:
    for chain in chains_of(device):
        for block, following in pairwise(chain):
            assert block.is_allocated or following.is_allocated or block.is_mapped != following.is_mapped


def assert_whole_pages_are_mapped(device: Device) -> None:
    for chain in chains_of(device):
        page = chain[0].range.page_bytes
        for block, following in pairwise(chain):
            if block.is_mapped != following.is_mapped:
                assert (following.address - block.range.address) % page == 0


def assert_blocks_are_as_requested(device: Device) -> None:
    for block in device.live:
        rounded = rounded_bytes(block.requested, device.allocator.settings)
        assert block.size >= rounded
        assert block.is_mapped
        assert block.pool.is_small == is_small(rounded)


def assert_no_more_is_unused_than_splitting_permits(device: Device) -> None:
    """Without a limit at most a MiB; under one, no block beyond it serves what is below it or much smaller."""
    of = device.allocator.settings
    for block in device.live:
        size = rounded_bytes(block.requested, of)
        if of == DEFAULT:
            assert block.size - size == 0 if block.pool.is_small else block.size - size <= MIB
        elif of == EVERY_KIND["max_split"]:
            assert block.size < size + of.oversize_slack_bytes if size >= 40 * MIB else block.size <= 40 * MIB
    if of == DEFAULT:
        large = [pool for pool in device.allocator.pools if not pool.is_small]
        assert all(block.size > MIB for pool in large for block in pool.free_blocks())


@pytest.mark.parametrize("kind", EVERY_KIND)
@settings(max_examples=20)
@given(program=programs, capacity=capacities)
def test_after_any_program_every_byte_is_accounted_for_and_within_what_there_is(
    kind: str, program: list[Operation], capacity: int | None
) -> None:
    """And when all is returned and released, only private pools keep memory."""
    device, again = (Device(EVERY_KIND[kind], capacity=capacity) for _ in range(2))
    allowed = None if capacity is None else int(capacity * (EVERY_KIND[kind].memory_fraction or 1))
    for _ in zip(run(device, program), run(again, program), strict=True):
        assert_ranges_are_filled_without_gap_or_overlap(device)
        assert_bytes_add_up(device)
        assert_pools_hold_what_nobody_has(device)
        assert_neighbours_are_merged(device)
        assert_whole_pages_are_mapped(device)
        assert_blocks_are_as_requested(device)
        assert_no_more_is_unused_than_splitting_permits(device)
        assert allowed is None or device.allocator.peak_reserved <= allowed
        assert [block.address for block in device.live] == [block.address for block in again.live], "the same way twice"
    assert device.allocator.calls == again.allocator.calls
    device.free(*list(device.live))
    device.allocator.release_cached()
    kept = [block for pool in device.allocator.pools for block in pool.free_blocks()]
    assert {block.pool.private_id for block in kept} <= {GRAPH_POOL}
    assert (device.allocator.reserved, device.allocator.allocated) == (sum(block.size for block in kept), 0)


# Which free block serves.


def test_the_smallest_block_that_is_large_enough_serves_and_of_equals_the_lowest_address() -> None:
    device = Device(DEFAULT)
    blocks = [device.malloc(size * MIB) for size in (30, 12, 20, 14)]
    addresses = [block.address for block in blocks]
    device.free(*blocks)
    assert device.malloc(13 * MIB).address == addresses[3]
    device = Device(DEFAULT)
    low, middle, high = (device.malloc(20 * MIB) for _ in range(3))
    lowest = low.address
    device.free(high, low, middle)
    assert device.malloc(20 * MIB).address == lowest


def test_streams_small_blocks_and_private_pools_share_nothing() -> None:
    device = Device(DEFAULT)
    device.free(device.malloc(20 * MIB, 0))
    device.malloc(20 * MIB, 7)
    assert device.allocator.reserved == 40 * MIB
    device = Device(DEFAULT)
    device.malloc(5 * MIB)
    device.malloc(MIB)
    assert sorted(device.ranges.values()) == [2 * MIB, 20 * MIB]
    device = Device(DEFAULT)
    device.free(device.malloc(20 * MIB), device.malloc(20 * MIB, 0, GRAPH_POOL))
    inside, outside = device.malloc(20 * MIB, 0, GRAPH_POOL), device.malloc(20 * MIB)
    assert inside.pool.private_id == GRAPH_POOL
    assert outside.pool.private_id == DEFAULT_POOL
    assert device.allocator.reserved == 40 * MIB


# Splitting and merging.


def test_the_lower_part_is_handed_out_and_small_and_expandable_blocks_are_split_to_512_bytes() -> None:
    device = Device(DEFAULT)
    first, second = device.malloc(5 * MIB), device.malloc(7 * MIB)
    assert second.address == first.address + 5 * MIB
    (rest,) = first.pool.free_blocks()
    assert (rest.address, rest.size) == (first.address + 12 * MIB, 8 * MIB)
    device = Device(DEFAULT)
    device.malloc(MIB - 512)
    device.malloc(MIB)
    assert device.malloc(1).size == 512
    assert device.allocator.reserved == 2 * MIB
    device = Device(EXPANDABLE)
    block = device.malloc(20 * MIB - 512)
    assert block.size == 20 * MIB - 512
    assert [free.size for free in block.pool.free_blocks()] == [512]


@pytest.mark.parametrize(("requested", "size"), [(19 * MIB, 20 * MIB), (19 * MIB - 512, 19 * MIB - 512)])
def test_a_large_block_is_split_where_more_than_a_mib_remains(requested: int, size: int) -> None:
    device = Device(DEFAULT)
    device.free(device.malloc(20 * MIB))
    assert device.malloc(requested).size == size


# A limit to splitting.


@pytest.mark.parametrize(
    ("limit_mib", "requested_mib", "reuses"),
    [(20, 19, False), (20, 80, False), (20, 81, True), (20, 99, True), (100, 90, False), (101, 90, True)],
)
def test_a_block_of_100_mib_serves_below_a_higher_limit_or_what_is_less_than_a_large_segment_smaller(
    limit_mib: int, requested_mib: int, reuses: bool
) -> None:
    device = Device(AllocatorSettings(max_split_bytes=limit_mib * MIB))
    device.free(device.malloc(100 * MIB))
    block = device.malloc(requested_mib * MIB)
    assert (device.allocator.calls.num_taken == 1) == reuses
    assert (block.size == 100 * MIB) == (reuses and limit_mib <= 100), "beyond the limit it is never split"


def test_max_non_split_rounding_widens_what_serves_and_below_the_limit_blocks_are_split_as_ever() -> None:
    device = Device(replace(LIMITED, max_non_split_rounding_bytes=90 * MIB))
    device.free(device.malloc(100 * MIB))
    assert device.malloc(20 * MIB).size == 100 * MIB
    device = Device(LIMITED)
    assert [device.malloc(5 * MIB).size for _ in range(4)] == [5 * MIB] * 4
    assert device.allocator.reserved == 20 * MIB


def test_under_a_limit_one_block_large_enough_is_released_before_all_and_the_largest_first() -> None:
    device = Device(LIMITED, capacity=105 * MIB)
    device.free(device.malloc(60 * MIB), device.malloc(12 * MIB))
    device.malloc(40 * MIB)
    assert device.allocator.reserved == 52 * MIB
    assert (device.allocator.calls.num_returned, device.allocator.calls.num_retries) == (1, 0)
    device = Device(LIMITED, capacity=105 * MIB)
    device.free(*[device.malloc(size * MIB) for size in (22, 30, 40)])
    device.malloc(62 * MIB)
    (kept,) = device.live[0].pool.free_blocks()
    assert kept.size == 22 * MIB
    assert device.allocator.calls.num_retries == 0


# A device that is full.


def test_what_nobody_uses_is_released_and_where_that_is_not_enough_the_request_fails() -> None:
    device = Device(DEFAULT, capacity=100 * MIB)
    device.free(device.malloc(60 * MIB))
    device.malloc(80 * MIB)
    assert device.allocator.reserved == 80 * MIB
    assert (device.allocator.calls.num_returned, device.allocator.calls.num_retries) == (1, 1)
    device = Device(DEFAULT, capacity=100 * MIB)
    held = device.malloc(80 * MIB)
    assert device.attempt(40 * MIB) is None
    assert device.live == [held]
    assert (device.allocator.reserved, device.allocator.allocated) == (80 * MIB, 80 * MIB)
    assert device.allocator.calls.num_retries == 1


def test_what_is_held_in_part_or_of_a_private_pool_is_not_released() -> None:
    device = Device(DEFAULT, capacity=30 * MIB)
    device.free(device.malloc(5 * MIB), *[device.malloc(5 * MIB) for _ in range(3)][:2])
    device.allocator.release_cached()
    assert device.allocator.reserved == 20 * MIB
    assert device.attempt(16 * MIB) is None
    device = Device(DEFAULT)
    device.free(device.malloc(20 * MIB, 0, GRAPH_POOL), device.malloc(20 * MIB))
    device.allocator.release_cached()
    assert device.allocator.reserved == 20 * MIB
    assert device.malloc(20 * MIB, 0, GRAPH_POOL).pool.private_id == GRAPH_POOL
    assert device.allocator.calls.num_taken == 2


# Garbage.


def fill_up_to_a_collection(device: Device) -> tuple[Pool, int, int]:
    """Reserve 64 of 100 MiB, of which 28 are free: the first half for longer than the second."""
    older, newer = device.malloc(14 * MIB), device.malloc(14 * MIB)
    addresses = older.address, newer.address
    device.free(older)
    device.malloc(20 * MIB, 7)
    device.free(newer)
    device.malloc(16 * MIB)
    return newer.pool, *addresses


def test_above_the_threshold_what_was_free_for_longest_is_released() -> None:
    settings = AllocatorSettings(garbage_collection_threshold=0.5, memory_fraction=0.9)
    device = Device(settings, capacity=100 * MIB)
    pool, older, newer = fill_up_to_a_collection(device)
    free = {block.address for block in pool.free_blocks()}
    assert older not in free
    assert newer in free
    assert device.allocator.reserved == 50 * MIB


@pytest.mark.parametrize(
    "settings",
    [
        AllocatorSettings(garbage_collection_threshold=0.5),
        AllocatorSettings(garbage_collection_threshold=0.5, memory_fraction=1.0),
        AllocatorSettings(garbage_collection_threshold=0.9, memory_fraction=0.9),
        AllocatorSettings(memory_fraction=0.9),
    ],
)
def test_nothing_is_collected_below_the_threshold_or_without_a_fraction(settings: AllocatorSettings) -> None:
    device = Device(settings, capacity=100 * MIB)
    fill_up_to_a_collection(device)
    assert device.allocator.calls.num_returned == 0
    assert device.allocator.reserved == 64 * MIB


# Segments that grow.


def test_an_expandable_segment_grows_by_the_pages_that_are_missing() -> None:
    device = Device(EXPANDABLE)
    maps: list[tuple[int, int]] = []
    device.allocator.on_growth = lambda address, size: maps.append((address, size))
    first = device.malloc(5 * MIB)
    second = device.malloc(30 * MIB)
    assert second.address == first.address + 5 * MIB
    assert maps == [(first.address, 20 * MIB), (first.address + 20 * MIB, 20 * MIB)]
    assert device.allocator.reserved == 40 * MIB
    assert len(device.ranges) == 1
    device = Device(EXPANDABLE)
    for _ in range(3):
        device.malloc(MIB)
    assert device.allocator.reserved == 4 * MIB


def test_a_block_that_can_grow_counts_as_large_as_it_can_become() -> None:
    device = Device(EXPANDABLE)
    hole, _, _ = device.malloc(30 * MIB), device.malloc(10 * MIB), device.malloc(30 * MIB)
    address = hole.address
    device.free(hole)
    assert sorted(block.size for block in hole.pool.free_blocks()) == [10 * MIB, 30 * MIB]
    assert device.malloc(8 * MIB).address == address, "the ten MiB at the end would fit better, but can grow"


def test_whole_pages_are_unmapped_and_mapped_again_from_the_lowest_address_where_all_finds_room() -> None:
    device = Device(EXPANDABLE)
    freed, _ = device.malloc(50 * MIB), device.malloc(5 * MIB)
    device.free(freed)
    device.allocator.release_cached()
    assert device.allocator.reserved == 20 * MIB
    assert sorted(block.size for block in freed.pool.free_blocks()) == [5 * MIB, 10 * MIB]
    assert device.allocator.calls.num_returned == 1
    device = Device(EXPANDABLE)
    first, _, third, _ = (device.malloc(20 * MIB) for _ in range(4))
    address = first.address
    device.free(third, first)
    device.allocator.release_cached()
    assert device.malloc(20 * MIB).address == address
    device = Device(EXPANDABLE)
    first, _ = device.malloc(20 * MIB), device.malloc(20 * MIB)
    start = first.address
    device.free(first)
    device.allocator.release_cached()
    assert device.malloc(21 * MIB).address == start + 40 * MIB
