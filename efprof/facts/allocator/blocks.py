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

    def place_after(self, previous: "Block | None") -> None:
        """Become the neighbour of `previous`, before whatever followed it."""
        self.previous = previous
        if previous is not None:
            self.following = previous.following
            previous.following = self
        if self.following is not None:
            self.following.previous = self

    def place_before(self, following: "Block") -> None:
        """Become the neighbour of `following`, after whatever preceded it."""
        self.previous, self.following = following.previous, following
        following.previous = self
        if self.previous is not None:
            self.previous.following = self


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


def split(block: Block, size: int) -> Block:
    """Hand out the lower part; the upper one goes back."""
    lower = part_of(block, block.address, size)
    lower.place_before(block)
    block.address += size
    block.size -= size
    block.pool.add(block)
    return lower


def merge(block: Block) -> None:
    """With free neighbours that are as mapped as it is."""
    before, after, is_mapped = block.previous, block.following, block.is_mapped
    if before is not None and not before.is_allocated and before.is_mapped == is_mapped:
        before.pool.remove(before)
        block.size += before.size
        block.address, block.previous = before.address, before.previous
        if block.previous is not None:
            block.previous.following = block
    if after is not None and not after.is_allocated and after.is_mapped == is_mapped:
        after.pool.remove(after)
        block.size += after.size
        block.following = after.following
        if block.following is not None:
            block.following.previous = block


def part_of(block: Block, address: int, size: int) -> Block:
    """A new block of the same range, not yet beside any other."""
    return Block(address, size, block.stream, block.pool, block.range)
