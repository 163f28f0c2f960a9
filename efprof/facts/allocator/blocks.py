"""Blocks of device memory, and the pools of free ones."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from efprof.artifacts.snapshot import PoolId

PoolKey = tuple[PoolId, bool]
"""The private pool's id, and whether the blocks are small."""


@dataclass(slots=True, eq=False)
class Range:
    """What the driver gave in one piece: a segment, or the addresses that an expandable one may grow in, by pages."""

    address: int
    page_bytes: int = 0

    @property
    def is_expandable(self) -> bool:
        return self.page_bytes > 0


@dataclass(slots=True, eq=False)
class Block:
    """A part of a range; its neighbours are those of the same range. Sizes in bytes."""

    address: int
    size: int
    stream: int
    pool: "Pool"
    range: Range
    requested: int = 0
    is_allocated: bool = False
    is_mapped: bool = True
    free_since: int = 0
    """By the pool's count of look-ups; for the garbage collector."""
    previous: "Block | None" = None
    following: "Block | None" = None

    @property
    def is_whole_range(self) -> bool:
        """Whether it was never split, or all of it is merged again."""
        return self.previous is None and self.following is None

    def place_after(self, previous: "Block") -> None:
        """Become the neighbour of `previous`, before whatever followed it."""
        link(self, previous.following)
        link(previous, self)


@dataclass(slots=True, eq=False)
class Pool:
    """The free blocks of one kind, by stream, size and address; and the unmapped stretches, by stream and address."""

    private_id: PoolId
    is_small: bool
    num_lookups: int = 0
    _free: list[tuple[int, int, int, int, Block]] = field(default_factory=list)
    """Each after what it is sorted by; its `id` comes last, for where a history lost an event and two lie at one
    address."""
    _unmapped: dict[tuple[int, int], Block] = field(default_factory=dict)

    def add(self, block: Block) -> None:
        if block.is_mapped:
            block.free_since = self.num_lookups
            insort(self._free, (block.stream, block.size, block.address, id(block), block))
        else:
            self._unmapped[block.stream, block.address] = block

    def remove(self, block: Block) -> None:
        if block.is_mapped:
            del self._free[bisect_left(self._free, (block.stream, block.size, block.address, id(block)))]
        else:
            del self._unmapped[block.stream, block.address]

    def first_of(self, stream: int, size: int) -> int:
        """Where the smallest block of at least this size is, the lowest address first, or the next stream's begin."""
        return bisect_left(self._free, (stream, size))

    def at(self, index: int, stream: int) -> Block | None:
        """The block there, if it belongs to this stream."""
        if not 0 <= index < len(self._free) or self._free[index][0] != stream:
            return None
        return self._free[index][-1]

    def free_blocks(self) -> list[Block]:
        return [block for *_, block in self._free]

    def unmapped_of(self, stream: int) -> list[Block]:
        """This stream's, the lowest address first."""
        return [block for place, block in sorted(self._unmapped.items()) if place[0] == stream]


def link(previous: Block | None, following: Block | None) -> None:
    """Make neighbours of the two; None is where the range begins or ends."""
    if previous is not None:
        previous.following = following
    if following is not None:
        following.previous = previous


def split(block: Block, size: int) -> Block:
    """Hand out the lower part; the upper one goes back."""
    lower = cut_off(block, size)
    block.pool.add(block)
    return lower


def cut_off(block: Block, size: int) -> Block:
    """A block of its own of the lowest `size` bytes of this one, which keeps the rest."""
    lower = part_of(block, block.address, size)
    link(block.previous, lower)
    link(lower, block)
    block.address += size
    block.size -= size
    return lower


def merge(block: Block) -> None:
    """With free neighbours that are as mapped as it is."""
    before, after, is_mapped = block.previous, block.following, block.is_mapped
    if before is not None and not before.is_allocated and before.is_mapped == is_mapped:
        before.pool.remove(before)
        block.size += before.size
        block.address = before.address
        link(before.previous, block)
    if after is not None and not after.is_allocated and after.is_mapped == is_mapped:
        after.pool.remove(after)
        block.size += after.size
        link(block, after.following)


def part_of(block: Block, address: int, size: int) -> Block:
    """A new block of the same range, not yet beside any other."""
    return Block(address, size, block.stream, block.pool, block.range)
