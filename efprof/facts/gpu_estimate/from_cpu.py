"""What a CPU recording asked of its allocator, as the history of a device that had to serve the same requests.

A window is some steps of a program that does the same again and again. It is played from a cold start and repeated;
what was there before it is placed first, and what one repetition leaves behind, the next one returns.

A window shows no older block. Their total is told by the memory read at the window's first boundary, but on a CPU that
is all that the C allocator has handed out: 110 MiB for a process that does no more than import torch, and every
dataset. So what the gradients and the optimizer's first step are evidence of is played; the rest is told beside it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

from efprof.artifacts.snapshot import Entry
from efprof.artifacts.steps import StepRecord
from efprof.facts.allocator.settings import AllocatorSettings, rounded_bytes
from efprof.facts.gpu_estimate.on_cuda import released_on_cuda
from efprof.facts.peak.live_memory import LiveWindow, readings_before
from efprof.model import frozen_dataclass

Move = tuple[int, int]
"""A block's number and the bytes asked for, or its number and 0 where it is returned."""

END: Move = (-1, 0)

RETURNED_AT = {"data": "forward", "forward": "backward", "backward": "backward", "optimizer": "optimizer"}
"""By the stage that made what a window leaves: the stage of the next window that begins when it is returned. A batch
goes once the next one is there, an output by the end of the next forward pass, a gradient before the pass that makes
the next (or earlier, as steps show), what the optimizer made before it makes that again; all else at the end."""

MAX_COPIES = 8
"""Of the parameters, that the optimizer's state is taken to consist of: Adam keeps 2. A longer history is one block."""


@frozen_dataclass
class AllocationTrace:
    """One window: what a device would be asked for. Blocks are numbered in the order they are asked for.

    Left out is what was made and returned within one stretch of the data stage: batches are made on the host, and only
    what the step then gets would be copied to a device.
    """

    moves: tuple[Move, ...]
    stages: tuple[str, ...]
    """In which stage each block was asked for."""
    left: tuple[int, ...]
    """Blocks that the window does not return."""
    starts: dict[str, int]
    """The move that each stage first begins with."""
    gradient_bytes: tuple[int, ...]
    """Blocks that the last step's backward pass made and that were there when it was done: its gradients."""

    def start_of(self, stage: str | None) -> int:
        """The move that the stage first begins with; the number of moves where there is none."""
        return self.starts.get(stage or "", len(self.moves))

    @property
    def left_bytes(self) -> int:
        """All that the window does not return."""
        left = frozenset(self.left)
        return sum(num_bytes for block, num_bytes in self.moves if block in left and num_bytes)


def passage_of(window: LiveWindow) -> AllocationTrace:
    """The window's requests and returns in order, free of any address."""
    stretch_of = [-1] * len(window.events)  # outside all of them
    for place, stretch in enumerate(window.stretches):
        stretch_of[stretch.first : stretch.end] = [place] * (stretch.end - stretch.first)
    stages = [window.stretches[place].stage if place >= 0 else "other" for place in stretch_of]
    releases = released_on_cuda(window)
    returned_at = defaultdict[int, list[int]](list)
    moves: list[Move] = []
    made_in: list[str] = []
    number_of: dict[int, int] = {}
    starts: dict[str, int] = {}
    for index, event in enumerate(window.events):
        starts.setdefault(stages[index], len(moves))
        moves += [(number_of.pop(made_at), 0) for made_at in returned_at.pop(index, ())]
        released_at = releases[index]
        if released_at < 0:
            continue
        is_returned = released_at < len(window.events)
        if stages[index] == "data" and is_returned and stretch_of[released_at] == stretch_of[index]:
            continue
        number_of[index] = len(made_in)
        moves.append((len(made_in), event.num_bytes))
        made_in.append("backward" if event.is_backward else stages[index])
        if is_returned:
            returned_at[released_at].append(index)
    return AllocationTrace(
        moves=tuple(moves),
        stages=tuple(made_in),
        left=tuple(number_of.values()),
        starts=starts,
        gradient_bytes=_gradients(window),
    )


def _gradients(window: LiveWindow) -> tuple[int, ...]:
    backward = [stretch for stretch in window.stretches if stretch.stage == "backward"]
    if not backward:
        return ()
    of_last_step = [stretch for stretch in backward if stretch.step == backward[-1].step]
    return tuple(
        window.events[index].num_bytes
        for index in window.alive_after(backward[-1].end - 1)
        if any(stretch.first <= index < stretch.end for stretch in of_last_step)
    )


def play(
    passages: Sequence[AllocationTrace],
    first: Sequence[int],
    at_optimizer: Sequence[int],
    *,
    num_rounds: int,
    cleared_at: str = "backward",
) -> list[Entry]:
    """The events of a device that serves `num_rounds` repetitions of the windows, from nothing.

    What a window leaves is returned in the next, as RETURNED_AT says, its gradients as `cleared_at` begins. Blocks of
    the sizes `first` are asked for before all others and stay, those of `at_optimizer` as the optimizer first steps:
    its state is made then. Addresses are numbers that are used once.
    """
    entries = [_request(address, num_bytes) for address, num_bytes in enumerate(first, start=1)]
    carried: list[tuple[str, int]] = []
    returned_at = RETURNED_AT | {"backward": cleared_at}
    for place, passage in enumerate(list(passages) * num_rounds):
        returns = defaultdict[int, list[int]](list)
        for stage, address in carried:
            returns[passage.start_of(returned_at.get(stage))].append(address)
        address_of: dict[int, int] = {}
        next_address = len(entries) + 1
        for index, (block, num_bytes) in enumerate((*passage.moves, END)):
            entries += [_return(address) for address in returns.get(index, ())]
            if index == passage.start_of("optimizer") and place == 0:
                entries += [_request(address, size) for address, size in enumerate(at_optimizer, next_address)]
                next_address += len(at_optimizer)
            if num_bytes:
                address_of[block] = next_address
                entries.append(_request(next_address, num_bytes))
                next_address += 1
            elif block >= 0:
                entries.append(_return(address_of.pop(block)))
        carried = [(passage.stages[block], address) for block, address in address_of.items()]
    return entries


def peak_allocated_bytes(entries: Iterable[Entry], settings: AllocatorSettings) -> int:
    """The most that is in use at once, each request rounded as the device would."""
    in_use: dict[int, int] = {}
    now = peak = 0
    for entry in entries:
        if entry.action == "alloc":
            in_use[entry.addr] = rounded_bytes(entry.size, settings)
            now += in_use[entry.addr]
            peak = max(peak, now)
        else:
            now -= in_use.pop(entry.addr)
    return peak


def _request(address: int, num_bytes: int) -> Entry:
    return Entry(action="alloc", addr=address, size=num_bytes)


def _return(address: int) -> Entry:
    return Entry(action="free_completed", addr=address, size=0)


@frozen_dataclass
class OlderMemory:
    """Bytes from before the windows.

    `boundary_bytes` is all that was in use as the first window began; None where that was not read. The parameters
    are as large as their gradients were; `gradient_bytes` are those of gradients that are kept and not made anew in
    each step; `state_bytes` is by how much memory rose in the optimizer's first step. `carried_bytes` is what a window
    leaves, and so found as it began: a part of `boundary_bytes`, but played, not placed.
    """

    parameter_bytes: int
    gradient_bytes: int
    state_bytes: int
    carried_bytes: int
    boundary_bytes: int | None
    sizes: tuple[int, ...]
    """Of the parameters' blocks; they sum to `parameter_bytes`."""
    cleared_at: str
    """The stage that begins when gradients are gone."""

    @property
    def rest_bytes(self) -> int | None:
        """What there may be besides: frozen weights, but also all that would stay on the host. None where unknown."""
        if self.boundary_bytes is None:
            return None
        seen_bytes = self.parameter_bytes + self.gradient_bytes + self.state_bytes
        return max(0, self.boundary_bytes - seen_bytes - self.carried_bytes)

    @property
    def first(self) -> list[int]:
        """The sizes of the blocks that stay: parameters, and gradients that are kept."""
        return [*self.sizes, *_copies(self.sizes, self.gradient_bytes)]

    @property
    def states(self) -> list[int]:
        """Of the optimizer's: for each parameter tensors as large as itself."""
        return _copies(self.sizes, self.state_bytes)


def older_memory(
    records: Sequence[StepRecord], windows: Sequence[LiveWindow], passages: Sequence[AllocationTrace]
) -> OlderMemory:
    """What the steps and the windows tell of the time before the first window."""
    made = max((passage.gradient_bytes for passage in passages), key=sum, default=())
    parameter_bytes = max((record.gradient_bytes or 0 for record in records), default=0) or sum(made)
    is_seen = parameter_bytes / 2 <= sum(made) <= parameter_bytes
    sizes = [*made, parameter_bytes - sum(made)] if is_seen else [parameter_bytes]
    return OlderMemory(
        parameter_bytes=parameter_bytes,
        gradient_bytes=parameter_bytes if sum(made) < parameter_bytes / 2 else 0,
        state_bytes=_first_rise(records, windows),
        carried_bytes=passages[-1].left_bytes if passages else 0,
        boundary_bytes=next((there for _, there in readings_before(windows[0], records)), None) if windows else None,
        sizes=tuple(size for size in sizes if size),
        cleared_at="forward" if _fall(records) > parameter_bytes / 2 else "backward",
    )


def _copies(sizes: Sequence[int], num_bytes: int) -> list[int]:
    """The sizes again and again, as often as they fit; what is over in one block."""
    each = sum(sizes)
    num_copies = min(num_bytes // each, MAX_COPIES) if each else 0
    rest = num_bytes - num_copies * each
    return list(sizes) * num_copies + ([rest] if rest else [])


def _fall(records: Sequence[StepRecord]) -> float:
    """By how much memory falls from an update to the next forward pass: by the gradients where these are cleared."""
    falls = [
        before.memory[-1].allocated_bytes - here.allocated_bytes
        for before, after in pairwise(records)
        for here in after.memory
        if here.boundary == "pre_forward" and before.memory and before.step + 1 == after.step
    ]
    return median(falls) if falls else 0


def _first_rise(records: Sequence[StepRecord], windows: Iterable[LiveWindow]) -> int:
    """By how much memory rose from the first step's gradients to its end: what the optimizer made for itself.

    A window that shows that step shows it as well; and its collector takes memory meanwhile.
    """
    first = records[0] if records else None
    shown = {stretch.step for window in windows for stretch in window.stretches}
    if first is None or first.step in shown:
        return 0
    rise, before = 0, None
    for here in first.memory:
        if here.boundary == "post_backward":
            before = here.allocated_bytes
        elif here.boundary == "post_optimizer_step" and before is not None:
            rise, before = rise + here.allocated_bytes - before, None
    return max(0, rise)
