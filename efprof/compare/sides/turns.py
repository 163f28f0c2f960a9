"""Two sides take turns, a few updates each: what changes on the machine meanwhile meets both, and times compare."""

import math
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from efprof.compare.sides.gates import Gate, SideEnded, TimeIsUp
from efprof.compare.sides.starting import Training
from efprof.compare.sides.trees import Tree
from efprof.compare.times import INTERRUPTED, LOOKS, SideTimes, TurnTimes, is_decided
from efprof.processes import Command
from efprof.units import format_duration

OPTIONS = ("--windows", "none", "--no-holders")
WARM_UP = 10
"""Updates, by which a step's memory and caches have settled: one of 50 steps still takes enough turns."""
TURN = (3, 6)
"""Updates of a turn, at random, the same for both: what a training does every so many steps falls into every place of
a turn. The first is not measured."""
LEAST_TURN_S = 0.06
"""Where updates are shorter, a turn has more of them."""
MAX_TURNS = 64
MIN_TURNS = 8
"""Pairs of turns of one pair of processes."""
MIN_FREE_SHARE = 0.1
"""Of a device's memory, beside both sides and whatever else is on it: with less, one would be slowed down or fail."""
SECONDS_TO_CLOSE = 30.0
PORTS = ("MASTER_PORT", "PET_MASTER_PORT")
"""Of torch.distributed and of torchrun: both sides are alive, and cannot have the same one."""

KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
"""Of glibc. Whether it gives back what a step frees, and the next one takes anew page by page, is the chance of a
process: of six of one training five had 2,000 page faults a step, and one 470 and steps 18 % shorter. So the same
training lay up to 20 % off itself."""

Say = Callable[[str], None]


class NoTurns(Exception):
    """The sides do not take enough turns; the text says why."""


class _Ended(NoTurns):
    """Before its gate."""


class NotBoth(NoTurns):
    """The sides cannot be alive at once."""


def take_turns(trees: tuple[Tree, Tree], training: Training, *, home: Path, end: float, say: Say) -> SideTimes:
    """The times of pairs of fresh processes, until they tell whether head is slower, or it is the instant `end`.

    Where both cannot be alive at once, a pair is one after the other, in every second one head first.
    """
    take = partial(_take_pairs, trees, training, home=home, end=end, say=say)
    try:
        return take(_together, "turns")
    except NotBoth as error:
        say(f"{error}: each runs alone, which tells less")
        return replace(take(_one_by_one, "alone"), how=f"ran one by one ({error})")


def _take_pairs(
    trees: tuple[Tree, Tree], training: Training, take: "Take", name: str, *, home: Path, end: float, say: Say
) -> SideTimes:
    """Raises NotBoth of the first pair."""
    found: list[TurnTimes] = []
    plan, pair_s = _Plan(start=time.monotonic(), end=end), 0.0
    for number in range(LOOKS[-1]):
        if number in LOOKS and is_decided(found):
            break
        missing = next(look for look in LOOKS if look > number) - number
        if time.monotonic() + missing * pair_s > end:
            return SideTimes(pairs=tuple(found), why="There was no time for more: give --max-minutes.")
        left = f", at most {format_duration(pair_s * (LOOKS[-1] - number))} left" if number else ""
        say(f"timing both by turns, pair {number + 1} of at most {LOOKS[-1]}{left}")
        try:
            found.append(take(trees, training, home / f"{name}-{number + 1}", plan, number))
        except NoTurns as error:
            if isinstance(error, NotBoth) and not found:
                raise
            return SideTimes(pairs=tuple(found), why=f"{error}.")
        except KeyboardInterrupt:
            return SideTimes(pairs=tuple(found), why=INTERRUPTED)
        pair_s = (time.monotonic() - plan.start) / len(found)
    return SideTimes(pairs=tuple(found))


class Side:
    """One that is alive; it waits at its gate unless it has its turn."""

    def __init__(self, command: Command, gate: Gate, why: Callable[[], str]) -> None:
        self._command, self._gate, self._why = command, gate, why
        self.update_s = 0.0
        """As long as an update of its warm-up took."""
        self.said: Sequence[dict[str, Any]] = ()

    def leaves_free(self, num_sides: int) -> float:
        """Of the memory of the fullest device that it trains on, once so many sides like it are there."""
        pairs = [(rank.get("free_share", 1.0), rank.get("held_share", 0.0)) for rank in self.said]
        return min(float(free - (num_sides - 1) * held) for free, held in pairs)

    def warm_up(self, end: float) -> None:
        self._arrive(end)
        self._gate.go_on(WARM_UP)
        self._arrive(end)
        self.update_s = self._seconds()
        self._command.pause()

    def turn(self, until: int, end: float) -> float:
        """Seconds per update, the mean of its ranks."""
        self._command.resume()
        self._gate.go_on(until)
        self._arrive(end)
        self._command.pause()
        return self._seconds()

    def close(self, end: float) -> None:
        self._command.resume()
        self._gate.go_on(None)
        self._command.wait(min(SECONDS_TO_CLOSE, end - time.monotonic()))

    def _arrive(self, end: float) -> None:
        try:
            self.said = self._gate.wait(self._command, end)
        except SideEnded:
            raise _Ended(f"{self._why()} before it came to its gate") from None
        except TimeIsUp:
            what = "came to its gate" if self._gate.has_ranks else "updated anything by an optimizer of torch"
            raise NoTurns(f"Time was up before a side {what}: give --max-minutes") from None

    def _seconds(self) -> float:
        return math.fsum(one["seconds"] / max(1, one["updates"]) for one in self.said) / len(self.said)


@contextmanager
def alive_sides(
    trees: tuple[Tree, Tree], training: Training, order: tuple[int, int], home: Path, end: float
) -> Iterator[tuple[Side, Side]]:
    """Base and head at their gates, each warmed up alone; all is over at the end. Raises NoTurns, NotBoth."""
    sides: dict[int, Side] = {}
    with ExitStack() as stack:
        for number, num_sides in zip(order, (2, 1), strict=True):
            try:
                sides[number] = side = stack.enter_context(_alive_side(trees[number], training, home, end))
            except _Ended as error:  # it may want a port, or a file, that the other one has
                raise NotBoth(str(error)) if sides else error from None
            if side.leaves_free(num_sides) < MIN_FREE_SHARE:
                raise NotBoth("both at once leave less than 10 % of a device's memory free")
        yield sides[0], sides[1]


@contextmanager
def _alive_side(tree: Tree, training: Training, home: Path, end: float) -> Iterator[Side]:
    """One at its gate, warmed up; it ends in good order. Raises NoTurns."""
    with ExitStack() as stack:
        fresh = stack.enter_context(tree.fresh())
        gate = Gate(fresh.folder.parent)
        stack.callback(gate.close)
        own, variables = home / fresh.name, {**gate.variables, **_own_ports(), **_steady()}
        command = stack.enter_context(training.started_in(fresh, own, OPTIONS, variables))
        stack.callback(gate.close)  # first of all: who waits there ends in good order
        side = Side(command, gate, partial(_ended, training, fresh, own))
        side.warm_up(end)
        yield side
        side.close(end)
    training.check(tree, home / tree.name)


def _own_ports() -> dict[str, str]:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        port = str(one.getsockname()[1])
    return {name: port for name in PORTS if name in os.environ or name == PORTS[-1]}


def _steady() -> dict[str, str]:
    """What makes processes of one training alike; what the user has set stays."""
    is_users = any(name.startswith("MALLOC_") or name in ("LD_PRELOAD", "GLIBC_TUNABLES") for name in os.environ)
    return {} if is_users else KEEPS_MEMORY


def _ended(training: Training, tree: Tree, home: Path) -> str:
    said = training.said(tree, home)
    return f"'{tree.ref}' ended, {said},"


@dataclass
class _Plan:
    """When all pairs of processes began and must have ended, and how many turns each takes: the first one tells."""

    start: float
    end: float
    num_turns: int = 0

    def untils(self, sides: tuple[Side, Side], number: int, starts: int = 1) -> list[int]:
        """The updates at which the turns of this pair end; `starts` times what was started is still to be started."""
        if not self.num_turns:
            starting_s = starts * (time.monotonic() - self.start)
            self.num_turns = _affordable_turns(sides, starting_s, self.end - self.start)
        return untils_of(sides, self.num_turns, number)


Take = Callable[[tuple[Tree, Tree], Training, Path, _Plan, int], TurnTimes]


def _together(trees: tuple[Tree, Tree], training: Training, home: Path, plan: _Plan, number: int) -> TurnTimes:
    with alive_sides(trees, training, _order(number), home, plan.end) as sides:
        return times_of(sides, plan.untils(sides, number), number, plan.end)


def _one_by_one(trees: tuple[Tree, Tree], training: Training, home: Path, plan: _Plan, number: int) -> TurnTimes:
    """The same turns, where each side is over before the other one is started."""
    seconds: tuple[list[float], list[float]] = [], []
    untils, why = list[int](), ""
    for one in _order(number):
        with _alive_side(trees[one], training, home, plan.end) as side:
            untils = untils or plan.untils((side, side), number, starts=2)
            try:
                seconds[one].extend(side.turn(until, plan.end) for until in untils)
            except NoTurns as error:
                why = str(error)
    return _enough(list(zip(*seconds, strict=False)), why, number)


def _order(number: int) -> tuple[int, int]:
    return (0, 1) if number % 2 == 0 else (1, 0)


def _affordable_turns(sides: Sequence[Side], starting_s: float, seconds: float) -> int:
    """As many that all pairs of processes are done in time; raises NoTurns where not even the first look is."""
    turn_s = sum(side.update_s * _longest(sides) for side in sides)
    num_turns = max(MIN_TURNS, min(MAX_TURNS, int((seconds / LOOKS[-1] - starting_s) / turn_s)))
    least_s = LOOKS[0] * (starting_s + num_turns * turn_s)
    if least_s > seconds:
        raise NoTurns(f"{LOOKS[0]} pairs of processes take {format_duration(least_s)}: give --max-minutes")
    return num_turns


def _times(sides: Sequence[Side]) -> int:
    """By what the length of a turn is multiplied where updates are short."""
    return max(1, math.ceil(LEAST_TURN_S / TURN[0] / max(1e-6, min(side.update_s for side in sides))))


def _longest(sides: Sequence[Side]) -> int:
    return TURN[1] * _times(sides)


def untils_of(sides: tuple[Side, Side], num_turns: int, number: int) -> list[int]:
    """The updates at which turns end, by chance, the same for both sides; of four turns each has another length."""
    dice, lengths = random.Random(number), range(TURN[0], TURN[1] + 1)
    drawn = (_times(sides) * length for _ in range(num_turns) for length in dice.sample(lengths, len(lengths)))
    return list(accumulate(islice(drawn, num_turns), initial=WARM_UP))[1:]


def times_of(sides: tuple[Side, Side], untils: Sequence[int], number: int, end: float) -> TurnTimes:
    """Seconds per update of base and head in each pair of turns, at the same updates of both; raises NoTurns.

    It is the pair of processes of this number, of which base was started first in the even ones.
    """
    dice = random.Random(number)
    pairs: list[tuple[float, float]] = []
    why = ""
    try:
        for until in untils:
            seconds = [0.0, 0.0]
            for side in dice.sample((0, 1), 2):
                seconds[side] = sides[side].turn(until, end)
            pairs.append((seconds[0], seconds[1]))
    except NoTurns as error:  # a short training: its turns count
        why = str(error)
    return _enough(pairs, why, number)


def _enough(pairs: list[tuple[float, float]], why: str, number: int) -> TurnTimes:
    if len(pairs) < MIN_TURNS:
        raise NoTurns(f"Of at least {MIN_TURNS} pairs of turns {len(pairs)} were taken: {why}")
    return TurnTimes(pairs=tuple(pairs), is_base_first=number % 2 == 0)
