"""When holders are counted, within what time, and which lines are seen to make them grow."""

import itertools
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from efprof.artifacts.events import CollectorStopped, HoldersCounted, RecordingCost
from efprof.artifacts.holders import Change, Container, Count, Counted, Watched, read_counts, read_watches
from efprof.recorder.holders import holders
from efprof.recorder.holders.growth_watch import MAX_LINES, MAX_NS, GrowthWatch
from efprof.recorder.holders.holders import HolderCount
from efprof.recorder.holders.paths import Held, Node, TimeLimit
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import LineWriter, RankFolder
from tests.recorder.conftest import Begin
from tests.recorder.programs import growth_programs as programs
from tests.recorder.recording import HARDLY_ANY_IN_FULL, Recorded, line_of, record_here, record_script
from tests.recorder.training import make_weight


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time enough to count pytest's own heap on a busy machine."""
    monkeypatch.setattr(holders, "MAX_SECONDS", 20.0)


def count(tmp_path: Path) -> HolderCount:
    sites = Sites(Path(__file__).parents[3], LineWriter(RankFolder(tmp_path), "sources.jsonl").write)
    holder_count = HolderCount(sites, lambda *_: None, [])
    holder_count.count()
    return holder_count


def keep_many(tmp_path: Path) -> HolderCount:
    """More tensors than a count has time for, before the list that is asked about."""
    dataset, history = [torch.ones(1)] * 400_000, [torch.ones(3)]
    holder_count = count(tmp_path)
    dataset.clear()
    history.clear()
    return holder_count


def test_a_count_without_time_says_so_marks_what_it_did_not_end_and_counts_what_stands_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "MAX_SECONDS", 0.2)
    holder_count = keep_many(tmp_path)
    assert holder_count.is_partial
    dataset, history = (holder_count.held["local", f"keep_many.{name}"].counted for name in ("dataset", "history"))
    assert dataset.is_cut
    assert 0 < dataset.tensors < 400_000
    assert (history.tensors, history.is_cut) == (1, False)


def keep_losses(tmp_path: Path) -> HolderCount:
    """Each of which has a graph of its own."""
    history = [torch.ones(1, requires_grad=True).square() for _ in range(6)]
    holder_count = count(tmp_path)
    history.clear()
    return holder_count


def test_the_graphs_that_there_is_no_time_for_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def add_graphs(held: Held, known: dict[Any, Node], time_limit: TimeLimit) -> None:
        """As if the time were up by then."""
        time_limit.limit, time_limit._num_calls = 0.0, 0
        count_graphs(held, known, time_limit)

    count_graphs = Held.add_graphs
    monkeypatch.setattr(Held, "add_graphs", add_graphs)
    holder_count = keep_losses(tmp_path)
    assert holder_count.is_partial
    history = holder_count.held["local", "keep_losses.history"].counted
    assert (history.tensors, history.is_cut) == (6, True)


def record(begin: Begin, text: str, **fields: object) -> Recorded:
    """In a process of its own, whose heap is not that of all tests."""
    child = begin(text, **fields)
    assert child.wait() == 0, child.errors
    assert not Recorded(folder=child.folder).events(CollectorStopped)
    return Recorded(folder=child.folder)


def holder_at(count: Count, path: str) -> Counted | None:
    return next((one for one in count.holders if one.path == path), None)


def container_at(count: Count, path: str | None) -> Container | None:
    return next((one for one in count.containers if one.path == path), None)


def changes_of(recorded: Recorded, path: str | None) -> list[Change]:
    """All that was seen of this path, of several watches what the same line did added up."""
    found: dict[tuple[str, str], Change] = {}
    for change in [change for one in watched(recorded) if one.path == path for change in one.changes]:
        known = found.setdefault((change.site, change.how), change)
        if known is not change:
            known.times += change.times
            known.entries += change.entries
    return list(found.values())


def watched(recorded: Recorded) -> list[Watched]:
    return [one for watch in read_watches(recorded.rank) for one in watch.watched]


def fed_line(begin_folder: Path) -> int:
    return line_of(begin_folder / "train.py", "fed")


@pytest.mark.parametrize(
    ("text", "path", "kind"),
    [
        (programs.DICT_IN_HELPER, "__main__.cache", "dict"),
        (programs.DATA_SET, "Cached.cache", "dict"),
        (programs.ITERATOR_OF_ITS_OWN, "__main__.cache", "dict"),
        (programs.HOOK_WITH_ALIAS, "Taps.d['last']", "list"),
        (programs.CALLBACK_DEQUE, "Callback.recent", "deque"),
        (programs.BUFFERS, "Sequential._buffers", "dict"),
        (programs.LRU_CACHE, "Extractor.features.cache_info", "lru_cache"),
        (programs.METRICS, "Metrics.losses", "list"),
        (programs.IN_BACKWARD, "__main__.gradients", "list"),
        (programs.IN_LIBRARY, "__main__.queue", "Queue"),
    ],
)
def test_a_container_that_fills_with_tensors_is_counted_and_its_line_seen(
    text: str, path: str, kind: str, begin: Begin, tmp_path: Path
) -> None:
    recorded = record(begin, text)
    # A count that a busy machine stops before it comes there tells nothing of the holder.
    first, second = [count for count in read_counts(recorded.rank) if holder_at(count, path) is not None][:2]
    before, after = holder_at(first, path), holder_at(second, path)
    assert before is not None
    assert after is not None
    assert after.type == kind
    assert after.number == before.number is not None
    num_steps = second.step - first.step
    assert after.length - before.length == num_steps
    assert after.tensor_bytes > before.tensor_bytes
    container = container_at(second, path)
    assert container is not None
    assert (container.number, container.length_before, container.length) == (
        after.number,
        before.length,
        after.length,
    )
    (change,) = changes_of(recorded, path)
    assert change.site.startswith(f"train.py:{fed_line(tmp_path)}:")
    assert change.how == "grew"
    assert change.entries == change.times >= 2
    assert change.is_within_call == (text in (programs.BUFFERS, programs.IN_LIBRARY))


def test_plain_python_beside_it_neither_uses_up_the_watch_nor_is_blamed(begin: Begin, tmp_path: Path) -> None:
    recorded = record(begin, programs.BESIDE_PLAIN_PYTHON)
    (change,) = changes_of(recorded, "train.history")
    assert change.site.startswith(f"train.py:{fed_line(tmp_path)}:")
    assert (change.how, change.is_within_call) == ("grew", False)


def test_a_watch_ends_in_plain_python_of_the_function_that_keeps_something(begin: Begin) -> None:
    recorded = record(begin, programs.WITH_PLAIN_PYTHON)
    (cost,) = recorded.events(RecordingCost)
    num_watches = len(read_watches(recorded.rank))
    assert num_watches
    assert cost.seconds["watches"] < num_watches * 3 * MAX_NS / 1e9


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (programs.ATTRIBUTE, "Meter.total"),
        (programs.ENTRY, "Totals.sums"),
        (programs.LOCAL_ENTRY, "train.sums"),
        (programs.LOCAL, "train.total"),
        (programs.JOINED, "train.bank"),
        (programs.TOTAL_IN_PLACE, "train.total"),
    ],
)
def test_what_is_bound_anew_and_keeps_more_each_time_is_seen_at_its_line(
    text: str, path: str, begin: Begin, tmp_path: Path
) -> None:
    recorded = record(begin, text)
    first, second = read_counts(recorded.rank)[:2]
    before, after = holder_at(first, path), holder_at(second, path)
    assert before is not None
    assert after is not None
    assert after.tensor_bytes + after.graph_nodes > before.tensor_bytes + before.graph_nodes
    assert after.tensors == before.tensors
    (change,) = changes_of(recorded, path)
    assert change.site.startswith(f"train.py:{fed_line(tmp_path)}:")
    assert (change.how, change.candidates) == ("bound", [])
    assert change.times >= 2


def test_of_two_statements_that_bind_a_local_variable_both_are_named(begin: Begin, tmp_path: Path) -> None:
    (change,) = changes_of(record(begin, programs.BOUND_TWICE), "train.total")
    line = fed_line(tmp_path)
    assert (change.site, change.candidates) == (f"train.py:{line}:train", [f"train.py:{line + 1}:train"])


@pytest.mark.parametrize(
    ("text", "path", "is_within_call"),
    [
        (programs.HOOKS_PILE_UP, "Linear._forward_hooks", True),
        (programs.PARAMETER_GROUPS, "SGD.param_groups", True),
        (programs.PLAIN_RECORDS, "train.records", False),
        (programs.ARRAYS_IN_A_DICT, "train.arrays", False),
    ],
)
def test_a_container_that_fills_with_other_things_is_found_and_its_line_seen(
    text: str, path: str, is_within_call: bool, begin: Begin, tmp_path: Path
) -> None:
    recorded = record(begin, text)
    first, second = read_counts(recorded.rank)[:2]
    container = container_at(second, path)
    assert container is not None
    assert container.length - container.length_before == second.step - first.step
    assert container.holds_tensors == (text == programs.PARAMETER_GROUPS)
    (change,) = changes_of(recorded, path)
    assert change.site.startswith(f"train.py:{fed_line(tmp_path)}:")
    assert (change.how, change.is_within_call) == ("grew", is_within_call)


def test_hooks_that_each_step_registers_are_seen_with_the_tensors_that_they_keep(begin: Begin, tmp_path: Path) -> None:
    (change,) = changes_of(record(begin, programs.PRE_HOOKS), "Linear._forward_pre_hooks")
    assert change.site.startswith(f"train.py:{fed_line(tmp_path)}:")
    assert change.is_within_call


def test_what_grows_between_epochs_is_watched_when_the_next_one_ends(begin: Begin, tmp_path: Path) -> None:
    recorded = record(begin, programs.EACH_EPOCH)
    (change,) = changes_of(recorded, "train.kept")
    assert change.site == f"train.py:{fed_line(tmp_path)}:train"
    assert change.times in (1, 2)  # a watch after a count at a step may see an epoch end as well


def test_a_local_variable_that_is_bound_anew_between_epochs_is_seen_at_its_line(begin: Begin, tmp_path: Path) -> None:
    (change,) = changes_of(record(begin, programs.BOUND_EACH_EPOCH), "train.bank")
    assert (change.site, change.how) == (f"train.py:{fed_line(tmp_path)}:train", "bound")


def test_a_count_that_is_due_in_a_watch_is_taken_when_it_ends_and_a_watch_ends_before_a_window(begin: Begin) -> None:
    """What is fed so seldom no watch sees twice within its twelve steps."""
    text = programs.program("outputs += [out.detach()] * (step % 20 in (1, 4))", first="outputs = []", num_steps=50)
    recorded = record(begin, text, trace_steps=((45, 46),))
    steps = [event.step for event in recorded.events(HoldersCounted)]
    assert steps == [2, 5, 17, 19, 39, 49]
    watched_steps = [step.step for step in recorded.steps if (step.window or "").startswith("watch")]
    assert watched_steps == [*range(6, 18), *range(40, 45)]


def test_an_entry_is_told_with_the_bytes_of_host_memory_that_it_takes(begin: Begin) -> None:
    container = container_at(read_counts(record(begin, programs.ARRAYS_IN_A_DICT).rank)[1], "train.arrays")
    assert container is not None
    assert 8000 <= container.entry_bytes <= 8500


def test_an_array_that_is_a_tensors_takes_what_the_tensor_does_and_one_that_others_share_nothing(
    begin: Begin,
) -> None:
    rows = "results.append({'points': torch.ones(1000, 3).numpy()}); views.append(batch[step].numpy())"
    text = programs.program(rows, first="results, views, batch = [], [], torch.ones(100, 500)")
    (counted, *_) = [count for count in read_counts(record(begin, text).rank) if len(count.containers) == 2]
    results, views = (container_at(counted, f"train.{name}") for name in ("results", "views"))
    assert results is not None
    assert views is not None
    assert 12_000 <= results.entry_bytes <= 12_700
    assert views.entry_bytes <= 500, "a view of the batch counts once among the last entries"


def test_figures_that_nobody_closes_are_a_container_by_pyplots_name(begin: Begin, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    recorded = record(begin, programs.FIGURES)
    (change,) = changes_of(recorded, "matplotlib.pyplot.get_fignums")
    assert change.site.startswith(f"train.py:{fed_line(tmp_path)}:")
    assert change.is_within_call


def test_what_is_bounded_does_not_grow_between_two_counts(begin: Begin) -> None:
    recorded = record(begin, programs.BOUNDED)
    counts = [count for count in read_counts(recorded.rank) if count.step in (19, 39)]
    kept = {"train.cache", "train.window", "train.recent", "features.cache_info"}
    assert [kept - {one.path for one in count.holders} for count in counts] == [set()] * 2
    cache = holder_at(counts[1], "features.cache_info")
    assert cache is not None
    assert (cache.type, cache.length, cache.max_length) == ("lru_cache", 8, 8)
    assert {one.length - one.length_before for one in counts[1].containers if one.path} == {0}


@pytest.mark.parametrize(
    ("text", "marker", "path"),
    [
        (programs.COMPILED, "fed", "train.outputs"),
        (programs.AT_MODULE_LEVEL, "fed", "__main__.total"),
        (programs.AT_MODULE_LEVEL, "drawn", "batches.seen"),
    ],
)
def test_lines_beside_compiled_functions_of_modules_and_in_generators_are_seen(
    text: str, marker: str, path: str, begin: Begin, tmp_path: Path
) -> None:
    (change,) = changes_of(record(begin, text), path)
    assert change.site.startswith(f"train.py:{line_of(tmp_path / 'train.py', marker)}:")
    assert not change.is_within_call


def test_a_line_that_takes_out_is_seen_too(begin: Begin) -> None:
    changes = changes_of(record(begin, programs.FILLS_FASTER_THAN_IT_FALLS), "train.outputs")
    assert {(change.how, change.entries // change.times) for change in changes} == {("grew", 3), ("shrank", 2)}


def test_what_the_last_entries_are_is_told_where_they_are_alike(begin: Begin) -> None:
    count = read_counts(record(begin, programs.ENTRIES).rank)[0]
    holders = [holder_at(count, f"train.{name}") for name in ("plain", "tuples", "dicts", "mixed")]
    entries = [holder.entry for holder in holders if holder is not None]
    assert entries == [["Tensor"], ["tuple", "int", "Tensor"], ["dict", "int", "Tensor"], []]


def test_counts_around_the_restart_of_the_loader_show_what_an_epoch_clears(begin: Begin) -> None:
    counts = read_counts(record(begin, programs.EPOCHS).rank)
    lengths: dict[str, list[int]] = {}
    for count in counts:
        holder = holder_at(count, "train.outputs")
        lengths.setdefault(count.moment, []).append(holder.length if holder is not None else 0)
    assert lengths["loader_ended"] == [30, 30]
    assert lengths["loader_began"] == [0, 0]
    began = next(count for count in counts if count.moment == "loader_began")
    container = container_at(began, "train.outputs")
    assert container is not None
    assert (container.length_before, container.length) == (30, 0)


def test_a_detached_scalar_is_told_with_the_storage_that_it_keeps(begin: Begin) -> None:
    holder = holder_at(read_counts(record(begin, programs.METRICS).rank)[1], "Metrics.losses")
    assert holder is not None
    assert holder.value_bytes == 4 * holder.tensors
    assert holder.tensor_bytes == 16 * 8 * holder.value_bytes


def test_what_the_end_finds_is_counted_then(tmp_path: Path) -> None:
    recorded = record_script(tmp_path / "home", programs.DICT_IN_HELPER)  # a fork's global variables are gone by then
    last = read_counts(recorded.rank)[-1]
    holder = holder_at(last, "__main__.cache")
    assert (last.moment, last.step) == ("end", 59)
    assert holder is not None
    assert holder.length == 60
    files = [event.file for event in recorded.events(HoldersCounted)]
    assert files == [f"holders-{number}.json" for number in range(1, 8)]


def test_nothing_is_counted_where_it_is_forbidden(begin: Begin) -> None:
    recorded = record(begin, programs.DICT_IN_HELPER, holders=False)
    assert len(recorded.steps) == 60
    assert recorded.events(HoldersCounted) == []


def test_a_debuggers_tracer_is_left_alone_and_the_watch_says_so(begin: Begin) -> None:
    recorded = record(begin, programs.UNDER_A_TRACER)
    (watch,) = read_watches(recorded.rank)
    assert watch.watched == []
    assert watch.why_not == "another tracer was at work, a debugger's or a coverage tool's"
    assert "tracer still there" in (recorded.folder.parent / "output").read_text()


def test_a_function_that_a_watch_left_has_its_lines_back_and_a_debuggers_tracer_stays(tmp_path: Path) -> None:
    def debugger(*_: object) -> Callable[..., Any]:
        return debugger

    sites = Sites(Path(__file__).parents[3], LineWriter(RankFolder(tmp_path), "sources.jsonl").write)
    watch, frame = GrowthWatch(sites, [], lambda tracer: tracer, 1e9), sys._getframe()
    assert watch.begin(frame, max_steps=5) is None
    for _ in range(MAX_LINES):
        pass
    has_left = not frame.f_trace_lines
    frame.f_trace = debugger
    watch.end()
    assert has_left
    assert frame.f_trace_lines
    assert frame.f_trace is debugger


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="From Python 3.13 on `locals()` is a copy, and may be traced.")
def test_a_function_that_takes_its_variables_is_not_traced_and_the_watch_says_so(begin: Begin) -> None:
    recorded = record(begin, programs.TAKES_LOCALS)
    (watch,) = read_watches(recorded.rank)
    assert watch.why_not is not None
    assert watch.why_not.startswith("train calls locals()")
    assert (recorded.folder.parent / "output").read_text() == "['settings']\n"


class Endless(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return itertools.cycle(torch.ones(1000) for _ in range(10_000))


def test_what_iterates_over_a_stream_for_a_loader_is_counted_though_no_variable_knows_it(tmp_path: Path) -> None:
    def train() -> None:
        weight, optimizer = make_weight()
        for batch in itertools.islice(DataLoader(Endless(), batch_size=4), 30):
            optimizer.zero_grad()
            (weight.sum() * batch.mean()).backward()
            optimizer.step()

    recorded = record_here(tmp_path, train, holders=True)
    held = [holder_at(count, "DataLoader.iterator") for count in read_counts(recorded.rank) if count.moment == "step"]
    assert [one.type for one in held if one is not None] == ["cycle"] * len(held)
    grown = [one.tensors for one in held if one is not None]
    assert grown == sorted(set(grown))
    assert all(Path(__file__).name in change.site for change in changes_of(recorded, "DataLoader.iterator"))


def test_a_watch_leaves_nothing_behind(begin: Begin) -> None:
    recorded = record(begin, programs.LOOKS_BEHIND)
    assert changes_of(recorded, "train.kept")
    assert (recorded.folder.parent / "output").read_text().split() == ["None", "None", "gone"]


def test_a_function_in_which_a_watch_begins_or_ends_keeps_nothing_that_it_lets_go(tmp_path: Path) -> None:
    """Its variables were read just before, and Python may keep a copy of them for the tracer."""
    weight, optimizer = make_weight()
    kept, gone = list[torch.Tensor](), list[bool]()

    def step() -> None:
        was_traced = sys.gettrace() is not None
        loss = weight.square().sum()
        reference = weakref.ref(loss)
        kept.append(torch.ones(3))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        torch.zeros(1)  # is traced, if it was not before
        del loss
        if was_traced != (sys.gettrace() is not None):
            gone.append(reference() is None)

    def train() -> None:
        for _ in range(60):
            step()

    record_here(tmp_path, train, holders=True)
    assert gone
    assert all(gone)


def test_what_a_step_makes_and_lets_go_ends_with_it_while_a_watch_is_open(tmp_path: Path) -> None:
    """Its own list is where that of the step before was, and longer: it seems to grow, and is watched."""
    weight, optimizer = make_weight()
    kept, alive = list[torch.Tensor](), Counter[tuple[str, bool]]()

    def step(length: int) -> list[tuple[str, weakref.ref[Any]]]:
        model = torch.nn.ModuleList()
        parts = [weight * part for part in range(length)]
        model.extend(torch.nn.Linear(1, 1) for _ in range(length))
        loss = torch.stack(parts).sum()
        kept.append(torch.ones(3))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return [
            ("loss", weakref.ref(loss)),
            ("part", weakref.ref(parts[-1])),
            ("weight", weakref.ref(model[-1].weight)),
        ]

    def train() -> None:
        for number in range(60):
            references = step(3 + number)
            if sys.gettrace() is not None:
                alive.update((name, one() is not None) for name, one in references)

    record_here(tmp_path, train, holders=True)
    assert len(alive) == 3
    assert not [name for name, is_alive in alive if is_alive]


def test_a_forked_child_is_not_traced(begin: Begin) -> None:
    recorded = record(begin, programs.FORKS)
    assert (recorded.folder.parent / "output").read_text().splitlines() == ["traced", "not traced"]
    (change,) = changes_of(recorded, "train.kept")
    assert change.times == change.entries >= 2


COMPILES = """
import sys

import torch
from efprof.recorder.session import current

weight, kept, traced = torch.nn.Parameter(torch.ones(3)), [], []
optimizer = torch.optim.SGD([weight], lr=0.1)
for number in range(80):
    traced.append(sys.gettrace() is not None)
    loss = weight.sum()
    kept.append(loss)
    optimizer.zero_grad()
    loss.backward()
    if number in (18, 41):
        current.session.loop.note_compilation()
    optimizer.step()
print(*(number for number, is_traced in enumerate(traced) if is_traced))
"""


def test_counts_wait_for_two_steps_that_compile_nothing_and_a_watch_ends_where_one_does(begin: Begin) -> None:
    """What is compiled is as the hook of the compiler tells it."""
    recorded = record(begin, COMPILES)
    counted = [event.step for event in recorded.events(HoldersCounted)]
    assert counted[:6] == [2, 5, 9, 14, 20, 39], "the fifth was due after step 19"
    traced = list(map(int, (recorded.folder.parent / "output").read_text().split()))
    assert traced[-1] == 41, "two steps, where nothing is compiled"
    assert not {18, 19, 20} & set(traced)


def test_a_watch_that_raises_costs_a_sentence_and_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: GrowthWatch, *_: object) -> None:
        if sys.gettrace() is not None:
            raise ValueError("as a test would have it")

    monkeypatch.setattr(GrowthWatch, "_check", fail)
    kept: list[torch.Tensor] = []
    recorded = record_here(tmp_path, train_for(60, kept), holders=True)
    assert len(recorded.steps) == len(kept) == 60
    (stopped,) = recorded.events(CollectorStopped)
    assert "as a test would have it" in stopped.reason
    assert sys.gettrace() is None


def train_for(num_steps: int, kept: list[torch.Tensor] | None = None) -> Callable[[], None]:
    """A training that keeps as many tensors in a list, if there is one."""

    def train() -> None:
        total = torch.zeros(())
        weight, optimizer = make_weight()
        for _ in range(num_steps):
            optimizer.zero_grad()
            weight.sum().backward()
            optimizer.step()
            if kept is not None:
                kept.append(total + 1)

    return train


def test_all_counts_are_taken_when_asked_for_whatever_they_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("efprof.recorder.budget.sampling.ALLOWANCE_NS", 0)
    as_far_as_it_goes = record_here(tmp_path / "a", train_for(45), holders=None, overhead=HARDLY_ANY_IN_FULL)
    counts = read_counts(as_far_as_it_goes.rank)
    assert [count.moment for count in counts] == ["end"], "which no step waits for"
    asked = read_counts(record_here(tmp_path / "b", train_for(45), holders=True).rank)
    assert [count.moment for count in asked] == [*["step"] * 6, "end"]


def test_the_last_step_of_a_function_that_is_over_is_not_counted_as_if_it_went_on(begin: Begin) -> None:
    """The 40th step ends with the program: by then `train` has returned, and `outputs` with it."""
    text = programs.program("outputs.append(out.detach().clone())", first="outputs = []", num_steps=40)
    counts = read_counts(record(begin, text).rank)
    assert [(count.moment, count.step) for count in counts][-2:] == [("step", 19), ("end", 39)]
