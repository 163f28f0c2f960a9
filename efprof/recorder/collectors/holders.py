"""When memory has grown for a while, counts twice who holds tensors, some steps apart, and keeps what grew."""

import time
from collections import deque
from itertools import pairwise
from statistics import median

import msgspec

from efprof.artifacts.events import Census as CensusEvent
from efprof.artifacts.holders import Holder, HolderCensus
from efprof.artifacts.steps import StepRecord
from efprof.artifacts.writing import write_atomically
from efprof.recorder.census import Census, Held
from efprof.recorder.open_step import OpenStep
from efprof.recorder.session import Session

FIRST_CHECK = 8
"""Steps before the first look: what a program allocates on its first steps, it keeps for good."""

STEPS_APART = 4
"""Between the two counts: a holder that grows does so by at least one tensor in four steps."""

MAX_CENSUSES = 3

MAX_STEPS_BACK = 512
"""A look goes back over half of the steps so far, and no further: a longer memory would itself grow."""

MIN_GROWTH_BYTES = 512
"""Per step; where graphs are kept, the memory_growth audit alarms at it: a loss and its node take a kilobyte."""

MIN_SHARE_RISING = 0.75
"""Of the steps looked back on; a sawtooth rises in half of them."""


class Holders:
    """Looks at the memory after every step, and takes a census where it grows; each later look is further off."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._allocated: deque[int] = deque(maxlen=MAX_STEPS_BACK)
        self._num_seen = 0
        self._next_check = FIRST_CHECK
        self._before: tuple[int, dict[tuple[str, str], Held]] | None = None
        self._count = 0

    def finish(self, step: OpenStep, record: StepRecord) -> None:
        """Note the memory; count where it is time to."""
        if record.memory and record.window is None:
            self._allocated.append(record.memory[-1].allocated_bytes)
            self._num_seen += 1
        if self._before is not None:
            if step.number >= self._before[0] + STEPS_APART:
                self._compare(step.number)
        elif self._num_seen >= self._next_check and self._count < MAX_CENSUSES:
            self._look(step.number)

    def _look(self, step: int) -> None:
        recent = list(self._allocated)[-(self._next_check // 2 + 1) :]
        rises = [after - before for before, after in pairwise(recent)]
        is_growing = sum(rise > 0 for rise in rises) >= MIN_SHARE_RISING * len(rises)
        # The median: what a window leaves behind, once, is no growth.
        if is_growing and median(rises) >= MIN_GROWTH_BYTES:
            self._session.loop.disturb()
            self._before = (step, Census(self._session.sites).count())
        self._next_check = max(self._next_check + 4, int(self._next_check * 1.5))

    def _compare(self, step: int) -> None:
        assert self._before is not None
        start = time.perf_counter()
        self._session.loop.disturb()
        first, before = self._before
        self._before = None
        after = Census(self._session.sites).count()
        grown = [_holder(before.get(key), held) for key, held in after.items() if _has_grown(before.get(key), held)]
        grown.sort(
            key=lambda holder: (
                -(
                    holder.graph_bytes_after
                    + holder.tensor_bytes_after
                    - holder.tensor_bytes_before
                    - holder.graph_bytes_before
                )
            )
        )
        self._count += 1
        name = f"holders-{self._count}.json"
        census = HolderCensus(step_before=first, step_after=step, holders=grown)
        write_atomically(self._session.rank_folder / name, msgspec.json.format(msgspec.json.encode(census)))
        self._session.note(CensusEvent(at_ns=time.time_ns(), step=step, file=name, seconds=time.perf_counter() - start))


def start(session: Session) -> None:
    """Listen to the ends of steps."""
    session.subscribe(session.loop.step_ended, "holders", Holders(session).finish)


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
    )
