"""Two sides take turns, a few steps each: what changes on the machine meanwhile meets both, and their times compare."""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from efprof.compare.sides.gates import Gate, SideEnded, TimeIsUp
from efprof.compare.sides.starting import Training
from efprof.compare.sides.trees import Tree
from efprof.compare.times import LOOKS, SideTimes, TurnTimes, is_decided
from efprof.processes import Command
from efprof.units import format_duration

OPTIONS = ("--windows", "none", "--no-holders")
WARM_UP_STEPS = 20
STEPS_IN_TURN = 4
"""Of which the first is not measured."""
MAX_TURNS = 32
MIN_TURNS = 8
"""Pairs of turns of one pair of processes."""
MAX_HELD_SHARE = 0.9
"""Of a device's memory, by both sides: more, and the second would be slowed down by the first or fail."""
SECONDS_TO_CLOSE = 30.0

Say = Callable[[str], None]


class NoTurns(Exception):
    """The sides cannot be alive at once; the text says why."""


def take_turns(trees: tuple[Tree, Tree], training: Training, *, home: Path, end: float, say: Say) -> SideTimes:
    """The times of pairs of fresh processes, until they tell whether head is slower, or it is the instant `end`."""
    found: list[TurnTimes] = []
    most = LOOKS[-1]
    start, num_turns = time.monotonic(), MAX_TURNS
    for number in range(most):
        if number in LOOKS and is_decided(found):
            break
        spent = time.monotonic() - start
        if number and time.monotonic() + spent / number > end:
            return SideTimes(pairs=tuple(found), why="Only these were done in time: give --max-minutes.")
        left = f", at most {format_duration(spent / number * (most - number))} left" if number else ""
        say(f"timing both by turns, pair {number + 1} of at most {most}{left}")
        order = (0, 1) if number % 2 == 0 else (1, 0)
        try:
            with alive_sides(trees, training, order, home / f"turns-{number + 1}", end) as sides:
                if not number:
                    num_turns = _affordable_turns(sides, time.monotonic() - start, end - start)
                found.append(times_of(sides, num_turns, random.Random(number), end))
        except (NoTurns, SideEnded, TimeIsUp) as error:
            return SideTimes(pairs=tuple(found), why=f"{error}.")
    return SideTimes(pairs=tuple(found))


class Side:
    """One that is alive; it waits at its gate unless it has its turn."""

    def __init__(self, tree: Tree, command: Command, gate: Gate) -> None:
        self._tree, self._command, self._gate = tree, command, gate
        self.step_seconds = 0.0
        """Of the steps of its warm-up."""
        self.said: Sequence[dict[str, Any]] = ()

    def warm_up(self, end: float) -> None:
        self._arrive(end)
        self._gate.go_on(WARM_UP_STEPS)
        self._arrive(end)
        self.step_seconds = self._seconds()
        self._command.pause()

    def turn(self, until: int, end: float) -> float:
        """Seconds per step, the mean of its ranks."""
        self._command.resume()
        self._gate.go_on(until)
        self._arrive(end)
        self._command.pause()
        return self._seconds()

    def close(self, end: float) -> None:
        with suppress(SideEnded):
            self._command.resume()
            self._gate.go_on(None)
            self._command.wait(min(SECONDS_TO_CLOSE, end - time.monotonic()))

    def _arrive(self, end: float) -> None:
        try:
            self.said = self._gate.wait(self._command, end)
        except (SideEnded, TimeIsUp) as error:
            raise type(error)(f"'{self._tree.ref}': {error}") from None

    def _seconds(self) -> float:
        return math.fsum(one["seconds"] / max(1, one["steps"]) for one in self.said) / len(self.said)


@contextmanager
def alive_sides(
    trees: tuple[Tree, Tree], training: Training, order: tuple[int, int], home: Path, end: float
) -> Iterator[tuple[Side, Side]]:
    """Base and head at their gates, each warmed up alone; all is over at the end."""
    sides: dict[int, Side] = {}
    with ExitStack() as stack:
        for number in order:
            gate = Gate()
            stack.callback(gate.close)
            fresh = stack.enter_context(trees[number].fresh())
            started = training.started_in(fresh, home / fresh.name, OPTIONS, gate.variables)
            sides[number] = Side(fresh, stack.enter_context(started), gate)
            sides[number].warm_up(end)
        if any(one.get("held_share", 0.0) > MAX_HELD_SHARE for side in sides.values() for one in side.said):
            raise NoTurns("Both sides together take more than 90 % of a device's memory")
        yield sides[0], sides[1]
        for side in sides.values():
            side.close(end)


def _affordable_turns(sides: Sequence[Side], starting_s: float, seconds: float) -> int:
    """As many that all pairs of processes are done in time, if that is enough of them."""
    turn_s = STEPS_IN_TURN * sum(side.step_seconds for side in sides)
    num_turns = int((seconds / LOOKS[-1] - starting_s) / turn_s) if turn_s else MAX_TURNS
    return max(MIN_TURNS, min(MAX_TURNS, num_turns))


def times_of(sides: tuple[Side, Side], num_turns: int, dice: random.Random, end: float) -> TurnTimes:
    """Seconds per step of base and head in each pair of turns, at the same steps of both."""
    pairs: list[tuple[float, float]] = []
    until = WARM_UP_STEPS
    with suppress(SideEnded):  # a short training: its turns count
        for _ in range(num_turns):
            until += STEPS_IN_TURN
            seconds = [0.0, 0.0]
            for number in dice.sample((0, 1), 2):
                seconds[number] = sides[number].turn(until, end)
            pairs.append((seconds[0], seconds[1]))
    if len(pairs) < MIN_TURNS:
        raise NoTurns(f"A side trains fewer than {WARM_UP_STEPS + MIN_TURNS * STEPS_IN_TURN + 1} steps")
    return TurnTimes(pairs=tuple(pairs))
