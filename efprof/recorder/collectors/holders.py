"""Counts twice who holds tensors, some steps apart, when memory has grown for a while, and keeps what grew.

With `--holders` also at fixed steps, whether or not memory grows; then it keeps what did not grow as well. With
`--no-holders` never.
"""

import time
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import median

import msgspec

from efprof.artifacts.events import Census as CensusEvent
from efprof.artifacts.holders import Holder, HolderCensus
from efprof.artifacts.steps import StepRecord
from efprof.artifacts.writing import write_atomically
from efprof.recorder.census import Census
from efprof.recorder.held import Held
from efprof.recorder.open_step import OpenStep
from efprof.recorder.session import Session

FIRST_CHECK = 8
"""Steps before the first look: what a program allocates on its first steps, it keeps for good."""

STEPS_APART = 4
"""Between the two counts: a holder that grows does so by at least one tensor in four steps."""

MAX_CENSUSES = 3

FIXED_FACTOR = 10
"""Each census that was asked for comes at ten times the step of the last: 8, 80, 800; a little later where steps are
so short that they are finished together."""

MAX_STEPS_BACK = 512
"""A look goes back over half of the steps so far, and no further: a longer memory would itself grow."""

MIN_GROWTH_BYTES = 512
"""Per step; where graphs are kept, the retained_graph audit alarms at it: a loss and its node take a kilobyte."""

MIN_GROWTH_SEEN_BYTES = 10 * 1024
"""In all the steps looked back on: a program that keeps nothing grows by 0.8 KB on most of its first 20 (measured)."""

MIN_SHARE_RISING = 0.75
"""Of the steps looked back on; a sawtooth rises in half of them."""

MIN_JUMPS = 3
"""As many that none follows below, and memory grows every so many steps; a window and a first evaluation leave two."""

MOST_STEPS_APART = 32
"""As many the second count waits for memory to rise, which may not happen in every step."""

MAX_HOLDERS = 500
"""In one file; a dictionary of tensors has as many holders as keys."""


class Holders:
    """Looks at the memory after every step, and takes a census where it grows; each later look is further off."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._keeps_all = bool(session.options.holders)
        self._next_fixed = FIRST_CHECK
        self._allocated: deque[tuple[int, int]] = deque(maxlen=MAX_STEPS_BACK)
        self._num_seen = 0
        self._next_check = 2 * FIRST_CHECK if self._keeps_all else FIRST_CHECK  # the first fixed one sees as much
        self._wished_ns: int | None = None
        self._before: tuple[int, Census] | None = None
        self._num_seen_before = 0
        self._awaits_rise = False
        self._num_for_growth = 0
        self._count = 0

    def finish(self, step: OpenStep, record: StepRecord) -> None:
        """Note the memory; count where it is time to."""
        self._note(record)
        if record.window is not None:
            return  # a profiler's window would note everything that a census does
        if self._before is None and self._wished_ns is None and not self._is_time(step.number + 1):
            return
        # Short steps may be finished together, long after they ended; between disturbed ones each is when it ends.
        self._session.loop.disturb()
        if self._before is not None:
            num_apart = step.number - self._before[0]
            is_early = self._awaits_rise and not self._has_risen()
            if num_apart >= (MOST_STEPS_APART if is_early else STEPS_APART):
                self._compare(step.number)
        elif self._wished_ns is None:
            self._wished_ns = time.perf_counter_ns()
        elif step.start_ns > self._wished_ns:
            self._wished_ns = None
            self._before, self._num_seen_before = (step.number, self._census()), self._num_seen

    def _note(self, record: StepRecord) -> None:
        if record.memory and record.window is None:
            self._allocated.append((record.step, record.memory[-1].allocated_bytes))
            self._num_seen += 1

    def _is_time(self, step: int) -> bool:
        """Whether holders are to be counted at the end of this step, the next one to end."""
        if self._keeps_all and step >= self._next_fixed:
            self._next_fixed *= FIXED_FACTOR
            self._awaits_rise = False
            return True
        if self._num_seen < self._next_check or self._num_for_growth >= MAX_CENSUSES:
            return False
        recent = list(self._allocated)[-(self._next_check // 2 + 1) :]
        self._awaits_rise = is_growing = _is_rising(recent) or _is_rising_in_jumps(recent)
        self._num_for_growth += is_growing
        self._next_check = max(self._next_check + 4, int(self._next_check * 1.5))
        return is_growing

    def _has_risen(self) -> bool:
        """Since the first count, by what was read after it: short steps are read now and then."""
        num_since = self._num_seen - self._num_seen_before
        sizes = [num_bytes for _, num_bytes in self._allocated][-num_since:] if num_since else []
        return bool(sizes) and sizes[-1] - sizes[0] >= MIN_GROWTH_BYTES * (STEPS_APART - 1)

    def _compare(self, step: int) -> None:
        assert self._before is not None
        start = time.perf_counter()
        (first, before), self._before = self._before, None
        after = self._census()
        self._count += 1
        name = f"holders-{self._count}.json"
        grown, steady = _sorted(before, after)
        if grown:
            self._session.sites.keep_all()  # the statement that makes a holder grow may stand in any of them
        census = HolderCensus(
            step_before=first,
            step_after=step,
            holders=[self._named(holder) for holder in [*grown, *(steady if self._keeps_all else ())][:MAX_HOLDERS]],
            is_partial=before.is_partial or after.is_partial,
        )
        write_atomically(self._session.rank_folder / name, msgspec.json.format(msgspec.json.encode(census)))
        self._session.note(CensusEvent(at_ns=time.time_ns(), step=step, file=name, seconds=time.perf_counter() - start))

    def _census(self) -> Census:
        census = Census(self._session.sites)
        census.count()
        return census

    def _named(self, holder: Holder) -> Holder:
        file = holder.file and self._session.sites.file(holder.file)
        return msgspec.structs.replace(holder, file=file)


def start(session: Session) -> None:
    """Listen to the ends of steps."""
    if session.options.holders is not False:
        session.subscribe(session.loop.step_ended, "holders", Holders(session).finish)


def _is_rising(recent: Sequence[tuple[int, int]]) -> bool:
    """Whether memory rises in most steps, by the (step, bytes) looked back on."""
    rises = [(after - before) / (late - early) for (early, before), (late, after) in pairwise(recent)]
    is_rising = sum(rise > 0 for rise in rises) >= MIN_SHARE_RISING * len(rises)
    # The median: what a window leaves behind, once, is no growth.
    least = max(MIN_GROWTH_BYTES, MIN_GROWTH_SEEN_BYTES / len(rises))
    return is_rising and median(rises) >= least


def _is_rising_in_jumps(recent: Sequence[tuple[int, int]]) -> bool:
    """Whether it rises every so many steps, as by an evaluation, and stays there; no jump is most of it."""
    lowest = list(accumulate((num_bytes for _, num_bytes in reversed(recent)), min))[::-1]
    jumps = [after - before for before, after in pairwise(lowest) if after - before >= MIN_GROWTH_SEEN_BYTES]
    is_enough = sum(jumps) >= MIN_GROWTH_BYTES * (recent[-1][0] - recent[0][0])
    return len(jumps) >= MIN_JUMPS and 2 * max(jumps) <= sum(jumps) and is_enough


def _sorted(before: Census, after: Census) -> tuple[list[Holder], list[Holder]]:
    """What grew and what did not, most bytes first; of what was not counted to its end nobody knows that it grew."""
    is_partial = before.is_partial or after.is_partial
    unsure = before.cut | after.cut
    unsure_graphs = before.cut_graphs | after.cut_graphs
    grown, steady = [], []
    for key, held in after.held.items():
        earlier = before.held.get(key)
        if key in unsure_graphs and earlier is not None:
            _level_graphs(earlier, held)
        if key in unsure or (is_partial and earlier is None):
            steady.append(_holder(held, held))
        elif _has_grown(earlier, held):
            grown.append(_holder(earlier, held))
        elif earlier is not None:
            steady.append(_holder(earlier, held))
    grown.sort(key=lambda holder: -_growth(holder))
    steady.sort(key=lambda holder: -(holder.tensor_bytes_after + holder.graph_bytes_after))
    return grown, steady


def _level_graphs(before: Held, after: Held) -> None:
    before.graph_nodes = after.graph_nodes = min(before.graph_nodes, after.graph_nodes)
    before.graph_bytes = after.graph_bytes = min(before.graph_bytes, after.graph_bytes)


def _growth(holder: Holder) -> int:
    tensor_bytes = holder.tensor_bytes_after - holder.tensor_bytes_before
    return tensor_bytes + holder.graph_bytes_after - holder.graph_bytes_before


def _has_grown(before: Held | None, after: Held) -> bool:
    """A container that appeared between the counts is a local of the moment, unless it holds several steps' worth."""
    if before is None:
        return after.tensors >= STEPS_APART
    return (
        after.tensors > before.tensors
        or after.graph_nodes > before.graph_nodes
        or after.tensor_bytes > before.tensor_bytes  # one tensor that is joined with the next: torch.cat
    )


def _holder(before: Held | None, after: Held) -> Holder:
    return Holder(
        path=after.path,
        scope=after.scope,
        owner=after.owner,
        name=after.name,
        file=after.file,
        type=after.type,
        tensors_before=before.tensors if before else 0,
        tensors_after=after.tensors,
        tensor_bytes_before=before.tensor_bytes if before else 0,
        tensor_bytes_after=after.tensor_bytes,
        graph_nodes_before=before.graph_nodes if before else 0,
        graph_nodes_after=after.graph_nodes,
        graph_bytes_before=before.graph_bytes if before else 0,
        graph_bytes_after=after.graph_bytes,
        length_before=before.length if before else 0,
        length_after=after.length,
        max_length=after.max_length if before is None or before.max_length == after.max_length else 0,
    )
