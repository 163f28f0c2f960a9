"""What was counted to grow, by whom it was seen to be fed, and what speaks against a leak."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from efprof.artifacts.holders import Count, Counted, Watch
from efprof.facts.growth.kept import RetainedTensors
from efprof.facts.growth.kept_growth import GRAPH_NODE_BYTES, KeptGrowth
from efprof.facts.run.run import Run
from efprof.model import NotRecorded
from efprof.units import MIB
from tests.audits.growing_runs import (
    STEPS,
    containers_of,
    counts_of,
    epochs,
    graphs,
    leaking_run,
    plain,
    seen,
    summed,
    watch_of,
)
from tests.support.builders import make_steps, write_run


def kept_in(run: Run) -> RetainedTensors:
    (one,) = run.get(KeptGrowth).holders
    return one


def test_a_holder_that_rose_through_three_counts_leaks_with_its_rate_and_its_line(tmp_path: Path) -> None:
    one = kept_in(leaking_run(tmp_path))
    assert (one.verdict, one.kind, one.site) == ("leak", "graphs", "train.py:8:train")
    assert [size.length for size in one.sizes] == [20, 40, 60]
    assert one.rate.slope == pytest.approx(MIB, rel=0.01)
    assert one.rate.low <= one.rate.slope <= one.rate.high


def test_a_graph_that_is_built_anew_in_each_step_is_not_kept_however_large_it_gets(tmp_path: Path) -> None:
    """As where texts come sorted by their length."""

    def kinds(name: str, of: Callable[[int], Counted]) -> list[str]:
        return [one.kind for one in leaking_run(tmp_path / name, counts=counts_of(of)).get(KeptGrowth).holders]

    one_loss = {"tensors": 1, "tensor_bytes": 4, "length": 1}
    assert kinds("anew", lambda step: graphs(step, graph_span=(100 * step, 100 * step + 9), **one_loss)) == []
    assert kinds("goes on", lambda step: graphs(step, graph_span=(1, 100 * step + 9), **one_loss)) == ["graphs"]
    assert kinds("more kept", lambda step: graphs(step, graph_span=(100 * step, 100 * step + 9))) == ["tensors"]


def test_what_is_missing_from_a_whole_count_had_nothing_and_a_cut_one_tells_the_least(tmp_path: Path) -> None:
    late = counts_of(lambda step: graphs(step) if step > 20 else None)
    assert [size.length for size in kept_in(leaking_run(tmp_path / "whole", counts=late)).sizes] == [0, 40, 60]
    late[0].is_partial = True
    assert [size.length for size in kept_in(leaking_run(tmp_path / "cut", counts=late)).sizes] == [40, 60]
    cut = counts_of(lambda step: graphs(min(step, 45), is_cut=step > 40))
    one = kept_in(leaking_run(tmp_path / "more", counts=cut))
    assert (one.verdict, [size.length for size in one.sizes]) == ("leak", [20, 40, 45])
    less = counts_of(lambda step: graphs(min(step, 40), is_cut=step > 40))
    assert kept_in(leaking_run(tmp_path / "as much", counts=less)).verdict == "thin"


def test_without_counts_there_is_nothing_to_tell_and_two_are_too_few_for_evidence(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match=r"holders-<n>\.json"):
        write_run(tmp_path, steps=make_steps(3)).get(KeptGrowth)
    one = kept_in(leaking_run(tmp_path / "second", counts=counts_of(graphs, steps=STEPS[:2])))
    assert (one.verdict, one.against) == ("thin", "it was counted to grow only once")


BOUNDED: list[tuple[str, dict[str, Any], str]] = [
    ("limit", {"counts": counts_of(lambda step: plain(step, type="deque", max_length=500))}, "maximum length is 500"),
    ("stopped", {"counts": counts_of(lambda step: plain(min(step, 40)))}, "not grown since step 39"),
    (
        "cleared",
        {"counts": [*counts_of(plain), Count(step=59, moment="loader_began", holders=[])]},
        "it fell from 60.0 MiB to 0 B between the counts after steps 59 and 59",
    ),
    (
        "taken out",
        {"watches": [watch_of(seen(), seen("train.py:9:train", "shrank", times=1, entries=80))]},
        "taken out",
    ),
]


@pytest.mark.parametrize(("fields", "against"), [row[1:] for row in BOUNDED], ids=[row[0] for row in BOUNDED])
def test_what_was_seen_to_end_its_growth_bounds_it(fields: dict[str, Any], against: str, tmp_path: Path) -> None:
    one = kept_in(leaking_run(tmp_path, plain, **fields))
    assert one.verdict == "bounded"
    assert against in one.against


def epochs_of(holder: Callable[..., Counted], *, length: int, tmp_path: Path) -> RetainedTensors:
    """Of counts of two epochs of that length."""
    return kept_in(leaking_run(tmp_path, counts=epochs(holder, length)))


def test_a_graph_that_is_added_to_until_an_epoch_ends_leaks_until_then(tmp_path: Path) -> None:
    one = epochs_of(summed, length=80, tmp_path=tmp_path)
    assert (one.verdict, one.kind, one.site) == ("leak", "graphs", "train.py:8:train")
    assert [size.step for size in one.sizes] == [19, 39, 79, 79, 99, 119, 159]
    assert one.rate.slope == 10 * GRAPH_NODE_BYTES
    assert one.most_bytes == 4 + 800 * GRAPH_NODE_BYTES
    assert one.is_let_go
    divided = epochs_of(
        lambda n, epoch=0: summed(n, epoch=epoch, graph_bytes=8 * n), length=80, tmp_path=tmp_path / "2"
    )
    assert divided.is_let_go
    assert "it fell from 328 KiB to 0 B" in one.against


def test_tensors_of_an_epoch_graphs_of_a_few_steps_and_losses_yet_to_go_backward_are_let_go_in_time(
    tmp_path: Path,
) -> None:
    def alone(entries: int, **_: int) -> Counted:
        return plain(entries)

    def to_come(entries: int, *, epoch: int = 0) -> Counted:
        return summed(entries, epoch=epoch, graph_bytes=32 * entries)

    assert epochs_of(alone, length=80, tmp_path=tmp_path / "plain").verdict == "bounded"
    assert epochs_of(summed, length=36, tmp_path=tmp_path / "few").verdict == "bounded"
    assert epochs_of(to_come, length=80, tmp_path=tmp_path / "to come").verdict == "bounded"


def test_the_graph_of_each_step_is_its_own_though_an_evaluation_binds_the_name_without_one(tmp_path: Path) -> None:
    counts = counts_of(lambda step: summed(step, graph_span=(1000 * step, 1000 * step + 9)))
    evaluated = Count(step=59, moment="loader_began", holders=[summed(0, graph_span=None)])
    again = [Count(step=59 + step, moment="step", holders=[summed(step, epoch=step)]) for step in (20, 60)]
    run = leaking_run(tmp_path, counts=[*counts, evaluated, *again])
    assert run.get(KeptGrowth).holders == ()


def test_a_limit_bounds_nothing_that_memory_cannot_hold_or_whose_entries_grow(tmp_path: Path) -> None:
    """16 GiB of memory, entries of a mebibyte."""
    counts = counts_of(lambda step: plain(step, type="deque", max_length=1_000_000))
    assert kept_in(leaking_run(tmp_path, counts=counts)).verdict == "leak"
    counts = counts_of(lambda step: plain(step, length=9, type="deque", max_length=9))
    assert kept_in(leaking_run(tmp_path / "second", counts=counts)).verdict == "leak"


def test_a_limit_that_memory_can_hold_bounds_tensors_but_no_more_than_a_tenth_of_it_of_graphs(tmp_path: Path) -> None:
    """16 GiB of memory, entries of a mebibyte."""

    def verdict(name: str, of: Callable[..., Counted], max_length: int) -> str:
        counts = counts_of(lambda step: of(step, type="deque", max_length=max_length))
        return kept_in(leaking_run(tmp_path / name, counts=counts)).verdict

    assert verdict("tensors", plain, 10_000) == "bounded"
    assert verdict("graphs", graphs, 10_000) == "leak"
    assert verdict("few graphs", graphs, 100) == "bounded"


def test_the_count_at_the_end_of_the_program_may_find_less_and_says_nothing(tmp_path: Path) -> None:
    for number, left in enumerate(([], [graphs(1)])):
        end = Count(step=59, moment="end", holders=left)
        assert kept_in(leaking_run(tmp_path / str(number), counts=[*counts_of(graphs), end])).verdict == "leak"


def test_what_grows_ever_slower_may_be_filling_and_a_few_entries_less_by_chance_are_not_slower(tmp_path: Path) -> None:
    counts = counts_of(lambda step: plain({20: 100, 40: 160, 60: 180}[step]))
    assert kept_in(leaking_run(tmp_path, counts=counts)).verdict == "filling"
    counts = counts_of(lambda step: plain({20: 3, 40: 10, 60: 14}[step]))
    assert kept_in(leaking_run(tmp_path / "second", counts=counts)).verdict == "leak"


def test_lines_of_containers_within_a_holder_are_its_own(tmp_path: Path) -> None:
    """A list in a dictionary that is reached by an alias: the watch knows its number only."""
    counts = containers_of(path="train.history", number=9, holds_tensors=True)
    for count, holders in zip(counts, counts_of(graphs), strict=True):
        count.holders = holders.holders
    run = leaking_run(tmp_path, counts=counts, watches=[watch_of(seen(), path=None, scope=None, file=None, number=9)])
    assert kept_in(run).site == "train.py:8:train"
    assert run.get(KeptGrowth).containers == ()


@pytest.mark.parametrize(
    ("watches", "why"),
    [
        ([watch_of(seen(), path="train.other", number=5)], "no line was seen to change it"),
        ([Watch(watched=[], why_not="a debugger was on")], "a debugger was on"),
        ([], "its lines were not watched"),
    ],
)
def test_where_no_line_was_seen_it_says_why(watches: list[Watch], why: str, tmp_path: Path) -> None:
    one = kept_in(leaking_run(tmp_path, watches=watches))
    assert one.site is None
    assert why in one.unseen


def test_two_lists_with_lines_of_their_own_are_two_and_what_reaches_a_growing_state_is_one(tmp_path: Path) -> None:
    counts = counts_of(graphs)
    for count in counts:
        count.holders.append(msgspec.structs.replace(count.holders[0], path="train.kept", name="kept", number=2))
    watches = [watch_of(seen()), watch_of(seen("train.py:9:train"), path="train.kept", number=2)]
    assert len(leaking_run(tmp_path, counts=counts, watches=watches).get(KeptGrowth).holders) == 2
    counts = counts_of(lambda step: graphs(step, path="Cell.state", name="state", length=0, tensors=1, number=None))
    for count in counts:
        (state,) = count.holders
        loss = msgspec.structs.replace(state, path="train.loss", name="loss", graph_nodes=state.graph_nodes + 9)
        count.holders = [loss, state]
    one = kept_in(leaking_run(tmp_path / "second", counts=counts))
    assert (one.path, one.aliases) == ("Cell.state", ("train.loss",))


def test_containers_of_no_tensors_grow_by_their_entries_and_a_shorter_one_is_bounded(tmp_path: Path) -> None:
    watches = [watch_of(seen(), path="train.log", number=7)]
    run = leaking_run(tmp_path, counts=containers_of(), watches=watches)
    (one,) = run.get(KeptGrowth).containers
    assert (one.verdict, one.kind, one.name, one.site) == ("leak", "objects", "train.log", "train.py:8:train")
    assert one.rate.slope == pytest.approx(MIB)
    counts = containers_of()
    shorter = msgspec.structs.replace(counts[-1].containers[0], length=2, length_before=60)
    counts.append(Count(step=79, moment="step", holders=[], containers=[shorter]))
    (one,) = leaking_run(tmp_path / "second", counts=counts).get(KeptGrowth).containers
    assert one.verdict == "bounded"


def test_an_entry_of_a_dictionary_is_spelled_as_the_program_does(tmp_path: Path) -> None:
    fields = {"path": "train.stats['train']['outputs']", "name": "stats"}
    assert (
        kept_in(leaking_run(tmp_path / "entry", lambda step: plain(step, **fields))).name == "stats['train']['outputs']"
    )
    fields = {"path": "table.cache_info", "owner": "table", "name": "cache_info", "type": "lru_cache"}
    assert kept_in(leaking_run(tmp_path / "cache", lambda step: plain(step, **fields))).name == "table"
