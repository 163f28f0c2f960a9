"""What the garbage collector frees: noted where it is much, its cycle named once, and the program none the wiser."""

import gc
import signal
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from efprof.artifacts.events import CollectorStopped
from efprof.artifacts.holders import CYCLES_FILE, Cycle, read_cycles
from efprof.recorder.holders import cycles as cycles_collector
from efprof.recorder.holders import garbage
from efprof.recorder.holders.cycles import Cycles
from efprof.recorder.holders.garbage import look_at_garbage, may_look
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import LineWriter, RankFolder
from tests.recorder.recording import record_here
from tests.recorder.training import make_weight

NUM_NUMBERS = 250_000
"""A megabyte of float32."""

PATHS = {"Part.owner -> Step.part -> Part", "Step.part -> Part.owner -> Step"}
"""Where a walk around the same circle may begin."""


@pytest.fixture(autouse=True)
def _in_any_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of pytest's own heap, which grows with every test before, says nothing of the program."""
    monkeypatch.setattr(cycles_collector, "MIN_FREED_SHARE", 0.0)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody else is called at collections, as hypothesis is, or makes them; there is time on a busy machine."""
    monkeypatch.setattr(garbage, "MAX_SECONDS", 5.0)
    others, thresholds = list(gc.callbacks), gc.get_threshold()
    gc.callbacks.clear()
    gc.collect()
    gc.set_threshold(1_000_000)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks[:] = others


class Step:
    """Knows its parts, which know it."""

    def __init__(self) -> None:
        self.part = Part(self)


class Part:
    """Holds a tensor, and knows its owner."""

    def __init__(self, owner: Step) -> None:
        self.owner = owner
        self.values = torch.ones(NUM_NUMBERS)


class Listener:
    """Keeps a method of its own."""

    def __init__(self) -> None:
        self.callback = self.listen
        self.values = torch.ones(NUM_NUMBERS)

    def listen(self) -> None:
        """Nothing to do."""


class Watched:
    """Refers to itself, and tells when it is finalized."""

    finalized = 0

    def __init__(self) -> None:
        self.me = self
        self.values = torch.ones(NUM_NUMBERS)

    def __del__(self) -> None:
        Watched.finalized += 1


def look(tmp_path: Path) -> list[Cycle]:
    return look_at_garbage(2, Sites(Path(__file__).parents[3], LineWriter(RankFolder(tmp_path), "sources.jsonl").write))


def close_over_itself() -> None:
    values = torch.ones(NUM_NUMBERS)

    def visit(depth: int) -> object:
        return visit(depth - 1) if depth else values

    visit(1)


def keep_error() -> None:
    values = torch.ones(NUM_NUMBERS)
    try:
        raise ValueError(values.shape)
    except ValueError as error:
        kept = error
    str(kept)


@pytest.mark.parametrize(
    ("make", "paths"),
    [
        (Step, PATHS),
        (Listener, {"Listener.callback -> Listener"}),
        (close_over_itself, {"close_over_itself.<locals>.visit.visit -> close_over_itself.<locals>.visit"}),
        (keep_error, {"keep_error.kept -> ValueError.__traceback__ -> keep_error"}),
    ],
)
def test_a_cycle_is_named_as_code_that_its_author_knows(
    make: Callable[[], object], paths: set[str], tmp_path: Path
) -> None:
    for _ in range(3):
        make()
    cycle = look(tmp_path)[0]
    assert cycle.path in paths
    assert cycle.count == 3
    assert (cycle.tensors, cycle.tensor_bytes) == (1, 4 * NUM_NUMBERS)
    assert any(link.file == "tests/recorder/holders/test_cycles.py" for link in cycle.links)


def test_what_lies_between_two_objects_is_told(tmp_path: Path) -> None:
    Listener()
    ((link,),) = [cycle.links for cycle in look(tmp_path)]
    assert (link.kind, link.name, link.through, link.can_be_weak) == ("attribute", "callback", "method", True)


def test_garbage_without_tensors_is_of_no_interest(tmp_path: Path) -> None:
    kept: dict[str, Any] = {}
    kept["me"] = kept
    del kept
    assert look(tmp_path) == []


def test_what_was_looked_at_is_freed_and_finalized_once(tmp_path: Path) -> None:
    Watched.finalized = 0
    watched, called = Watched(), []
    dead = weakref.ref(watched, called.append)
    storage = weakref.ref(watched.values)
    del watched
    assert [cycle.path for cycle in look(tmp_path)] == ["Watched.me -> Watched"]
    assert (Watched.finalized, len(called)) == (1, 1)
    assert dead() is None
    assert storage() is None
    assert gc.garbage == []
    assert gc.get_debug() == 0
    assert gc.isenabled()
    gc.collect()
    assert Watched.finalized == 1


def test_a_look_that_fails_leaves_the_collector_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("a look that fails")

    monkeypatch.setattr(garbage, "_find_cycles", fail)
    Step()
    with pytest.raises(RuntimeError, match="a look that fails"):
        look(tmp_path)
    assert (gc.garbage, gc.get_debug(), gc.isenabled()) == ([], 0, True)


def test_a_look_out_of_time_finds_nothing_and_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "MAX_SECONDS", -1.0)
    step = Step()
    values = weakref.ref(step.part.values)
    del step
    assert look(tmp_path) == []
    assert values() is None


USES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "is off": (gc.disable, gc.enable),
    "debugs": (lambda: gc.set_debug(gc.DEBUG_UNCOLLECTABLE), lambda: gc.set_debug(0)),
    "has frozen": (gc.freeze, gc.unfreeze),
    "is watched": (lambda: gc.callbacks.append(lambda phase, info: None), gc.callbacks.pop),
    "keeps garbage": (lambda: gc.garbage.append("kept"), gc.garbage.clear),
}
"""Each with what undoes it."""


def test_a_program_that_uses_the_collector_itself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.unfreeze()
    monkeypatch.undo()  # what is frozen counts here
    gc.callbacks.append(lambda phase, info: None)  # the recorder's
    for name, (use, undo) in USES.items():
        assert may_look()
        use()
        try:
            assert not may_look(), name
        finally:
            undo()


def train(
    make: Callable[[], object], num_steps: int = 60, collect_every: int = 10, generation: int = 0, again_after: int = 0
) -> Callable[[], None]:
    """So many steps, each of which makes something; collected every so often, as the collector itself would, and again
    so many steps later."""

    def run() -> None:
        weight, optimizer = make_weight(2)
        for number in range(num_steps):
            made = make()
            weight.sum().backward()
            optimizer.step()
            del made
            if number % collect_every in (collect_every - 1, again_after - 1):
                gc.collect(generation)

    return run


def big_step() -> list[Step]:
    return [Step() for _ in range(8)]


def test_whole_collections_in_every_step_are_all_noted_and_soon_not_looked_into(tmp_path: Path) -> None:
    found = read_cycles(record_here(tmp_path, train(big_step, num_steps=6, collect_every=1, generation=2)).rank)
    assert found.num_large == 5, "all but that of the first step, which was not over yet"
    assert found.cycles == []


def test_what_is_collected_in_every_step_is_there_if_the_process_is_killed(tmp_path: Path) -> None:
    num_large: list[int] = []

    def train_and_read() -> None:
        train(big_step, num_steps=6, collect_every=1, generation=2)()
        num_large.extend(read_cycles(path.parent).num_large for path in tmp_path.rglob(CYCLES_FILE))

    record_here(tmp_path, train_and_read)
    assert num_large == [4]


def test_large_collections_are_noted_and_their_cycle_is_named(tmp_path: Path) -> None:
    recorded = record_here(tmp_path, train(big_step, generation=2))
    found = read_cycles(recorded.rank)
    assert found.num_large >= 3
    assert found.num_read >= found.num_large
    assert all(8 * 4 * NUM_NUMBERS <= each.freed_bytes <= each.before_bytes for each in found.collections)
    starts = [step.started_ns for step in recorded.steps]
    assert all(starts[0] < each.at_ns for each in found.collections)
    assert found.cycles[0].path in PATHS
    assert '"tests/recorder/holders/test_cycles.py"' in (recorded.rank / "sources.jsonl").read_text()
    assert recorded.events(CollectorStopped) == []


def test_a_look_waits_for_garbage_after_a_collection_that_was_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four steps after each that was, when the look would come; to read memory at all of them would take too long."""
    original = Cycles._start

    def start(self: Cycles) -> None:
        if self._loop.number % 10 in (9, 0):
            original(self)

    monkeypatch.setattr(Cycles, "_start", start)
    recorded = record_here(tmp_path, train(big_step, generation=2, again_after=4))
    assert read_cycles(recorded.rank).cycles[0].path in PATHS


def test_without_cycles_nothing_is_noted(tmp_path: Path) -> None:
    found = read_cycles(record_here(tmp_path, train(lambda: torch.ones(8 * NUM_NUMBERS))).rank)
    assert (found.num_large, found.collections, found.cycles) == (0, [], [])
    assert found.num_read > 0


def test_what_the_recorder_collects_itself_is_not_noted(tmp_path: Path) -> None:
    traced = record_here(tmp_path, train(big_step, num_steps=16, collect_every=100), windows=((8, 9),))
    found = read_cycles(traced.rank)
    assert (found.num_large, found.collections) == (0, [])


def test_the_collector_of_the_program_is_given_back(tmp_path: Path) -> None:
    seen: list[int] = []
    record_here(tmp_path, lambda: seen.append(len(gc.callbacks)))
    assert seen == [1]
    assert gc.callbacks == []


def test_a_program_that_empties_the_list_is_not_disturbed(tmp_path: Path) -> None:
    recorded = record_here(tmp_path, gc.callbacks.clear)
    assert not recorded.rank.exists() or recorded.events(CollectorStopped) == []


def test_ctrl_c_within_a_collection_reaches_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, struck = Cycles._stop, []

    def stop(self: Cycles, generation: int) -> None:
        if not struck:
            struck.append(generation)
            signal.raise_signal(signal.SIGINT)
        original(self, generation)

    monkeypatch.setattr(Cycles, "_stop", stop)
    caught: list[int] = []

    def train_and_collect() -> None:
        for number in range(3):
            try:
                train(big_step, num_steps=2)()
                gc.collect()
                sum(range(1000))
            except KeyboardInterrupt:
                caught.append(number)

    recorded = record_here(tmp_path, train_and_collect)
    assert caught == [0]
    assert recorded.events(CollectorStopped) == []
