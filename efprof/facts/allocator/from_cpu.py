"""What a CPU recording asked of its allocator, as the history of a device that had to serve the same requests.

A window is some steps of a program that does the same again and again. It is played from a cold start and repeated;
what was there before it is placed first, and what one repetition leaves behind, the next one returns.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from efprof.artifacts.snapshot import Entry
from efprof.facts.allocator.history import History
from efprof.facts.allocator.rules import rounded_bytes
from efprof.facts.allocator.settings import AllocatorSettings
from efprof.facts.live_memory import LiveWindow

Move = tuple[int, int]
"""A block's number and the bytes asked for, or its number and 0 where it is returned."""

END: Final[Move] = (-1, 0)

Name = tuple[tuple[str, ...], str, int]
"""By which a block of one step is found in another: stack, operation, and how many of the step had both before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """One window: what a device would be asked for. Blocks are numbered in the order they are asked for.

    Left out is what was made and returned within one stretch of the data stage: batches are made on the host, and only
    what the step then gets would be copied to a device.
    """

    moves: tuple[Move, ...]
    names: tuple[Name, ...]
    is_of_backward: tuple[bool, ...]
    left: tuple[int, ...]
    """Blocks that the window does not return."""
    backward_at: int
    """The move that the first backward pass begins with; the number of moves where there is none."""
    optimizer_at: int
    """The same of the optimizer's first step."""
    gradient_bytes: tuple[int, ...]
    """Blocks that the last step's backward pass made and that were there when it was done: its gradients."""

    @property
    def left_bytes(self) -> int:
        """All that the window does not return."""
        left = frozenset(self.left)
        return sum(num_bytes for block, num_bytes in self.moves if block in left and num_bytes)


def passage_of(window: LiveWindow) -> Passage:
    """The window's requests and returns in order, free of any address."""
    stretch_of = _stretch_of_each(window)
    step_of = _step_of_each(window)
    stages = [window.stretches[place].stage if place >= 0 else "other" for place in stretch_of]
    returned_at: defaultdict[int, list[int]] = defaultdict(list)
    moves: list[Move] = []
    names: list[Name] = []
    is_of_backward: list[bool] = []
    number_of: dict[int, int] = {}
    num_alike: defaultdict[tuple[tuple[str, ...], str, int], int] = defaultdict(int)
    starts: dict[str, int] = {}
    for index, event in enumerate(window.events):
        starts.setdefault(stages[index], len(moves))
        moves += [(number_of.pop(made_at), 0) for made_at in returned_at.pop(index, ())]
        released_at = int(window.released_at[index])
        if released_at < 0:
            continue
        is_returned = released_at < len(window.events)
        if stages[index] == "data" and is_returned and stretch_of[released_at] == stretch_of[index]:
            continue
        number_of[index] = len(names)
        moves.append((len(names), event.num_bytes))
        kind = event.stack, event.operation, step_of[index]
        names.append((event.stack, event.operation, num_alike[kind]))
        num_alike[kind] += 1
        is_of_backward.append(event.is_backward or stages[index] == "backward")
        if is_returned:
            returned_at[released_at].append(index)
    return Passage(
        moves=tuple(moves),
        names=tuple(names),
        is_of_backward=tuple(is_of_backward),
        left=tuple(number_of.values()),
        backward_at=starts.get("backward", len(moves)),
        optimizer_at=starts.get("optimizer", len(moves)),
        gradient_bytes=_gradients(window),
    )


def _stretch_of_each(window: LiveWindow) -> list[int]:
    """For each event the place of its stretch; -1 outside all of them."""
    places = [-1] * len(window.events)
    for place, stretch in enumerate(window.stretches):
        places[stretch.first : stretch.end] = [place] * (stretch.end - stretch.first)
    return places


def _step_of_each(window: LiveWindow) -> list[int]:
    """For each event the step that began last; the first one before any did."""
    steps = [window.stretches[0].step if window.stretches else 0] * len(window.events)
    for stretch in window.stretches:
        steps[stretch.first :] = [stretch.step] * (len(window.events) - stretch.first)
    return steps


def _gradients(window: LiveWindow) -> tuple[int, ...]:
    backward = [stretch for stretch in window.stretches if stretch.stage == "backward"]
    if not backward:
        return ()
    of_last_step = [stretch for stretch in backward if stretch.step == backward[-1].step]
    alive = window.alive_after(backward[-1].end - 1)
    return tuple(
        window.events[index].num_bytes
        for index in alive
        if any(stretch.first <= index < stretch.end for stretch in of_last_step)
    )


def play(
    passages: Sequence[Passage],
    *,
    first: Sequence[int],
    at_optimizer: Sequence[int],
    in_optimizer: Sequence[int] = (),
    num_rounds: int,
    returns_early: bool = False,
) -> list[Entry]:
    """The events of a device that serves `num_rounds` repetitions of the windows, from nothing.

    Blocks of the sizes `first` are asked for before all others and stay, those of `at_optimizer` as the optimizer
    first steps: its state is made then. Those of `in_optimizer` are there for a moment as it steps in each window.
    What a window leaves is returned in the next: at its begin where `returns_early`; else as a variable that is bound
    again returns its tensor, right after the next one's is there, and a gradient before the backward pass that makes
    the next.
    """
    entries = [_request(address, num_bytes) for address, num_bytes in enumerate(first, start=1)]
    carried: list[tuple[Name, bool, int]] = []
    for place, passage in enumerate(passage for _ in range(num_rounds) for passage in passages):
        returns = _returns(carried, passage, returns_early=returns_early)
        carried = _play_once(entries, passage, returns, () if place else at_optimizer, in_optimizer)
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


def history_from(entries: list[Entry]) -> History:
    """Of a device that nobody recorded, under torch's default settings."""
    return History(device=0, entries=entries, settings=AllocatorSettings())


def _returns(
    carried: Iterable[tuple[Name, bool, int]], passage: Passage, *, returns_early: bool
) -> dict[int, list[int]]:
    """Before which move of the window which blocks of the one before are returned."""
    made_at: dict[Name, int] = {}
    for index, (block, num_bytes) in enumerate(passage.moves):
        if num_bytes:
            made_at.setdefault(passage.names[block], index)
    returns: defaultdict[int, list[int]] = defaultdict(list)
    for name, is_of_backward, address in carried:
        if returns_early:
            place = 0
        elif is_of_backward:
            place = passage.backward_at
        else:
            place = made_at.get(name, len(passage.moves) - 1) + 1
        returns[place].append(address)
    return returns


def _play_once(
    entries: list[Entry],
    passage: Passage,
    returns: dict[int, list[int]],
    at_optimizer: Sequence[int],
    in_optimizer: Sequence[int],
) -> list[tuple[Name, bool, int]]:
    """Append a window's events; gives what it leaves behind. Addresses are numbers that are used once."""
    address_of: dict[int, int] = {}
    next_address = len(entries) + 1
    for index, (block, num_bytes) in enumerate((*passage.moves, END)):
        entries += [_return(address) for address in returns.get(index, ())]
        if index == passage.optimizer_at:
            made = [*at_optimizer, *in_optimizer]
            entries += [_request(next_address + place, size) for place, size in enumerate(made)]
            entries += [_return(next_address + place) for place in range(len(at_optimizer), len(made))]
            next_address += len(made)
        if num_bytes:
            address_of[block] = next_address
            entries.append(_request(next_address, num_bytes))
            next_address += 1
        elif block >= 0:
            entries.append(_return(address_of.pop(block)))
    return [(passage.names[block], passage.is_of_backward[block], address) for block, address in address_of.items()]


def _request(address: int, num_bytes: int) -> Entry:
    return Entry(action="alloc", addr=address, size=num_bytes)


def _return(address: int) -> Entry:
    return Entry(action="free_completed", addr=address, size=0)
