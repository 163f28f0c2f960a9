"""Counts of holders, what was seen of their lines, and cycles of garbage, read back; recordings from before, too."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from efprof.artifacts.holders import (
    CYCLES_FILE,
    Change,
    CollectedGarbage,
    Container,
    Count,
    Counted,
    Cycle,
    CycleLink,
    LargeCollection,
    Watch,
    Watched,
    read_counts,
    read_cycles,
    read_watches,
)
from efprof.model import NotRecorded, UnreadableInput

COUNTED = Counted(
    path="train.history",
    scope="local",
    owner="train",
    name="history",
    file="train.py",
    type="list",
    length=20,
    tensors=20,
    tensor_bytes=2000,
    value_bytes=80,
    graph_nodes=0,
    graph_bytes=0,
    number=7,
)

CONTAINER = Container(number=7, type="list", length=20, length_before=10, holds_tensors=True, entry_bytes=8)

WATCH = Watch(
    watched=[
        Watched(
            path="train.history", number=7, changes=[Change(site="train.py:9:train", how="grew", times=2, entries=2)]
        )
    ],
)


def test_every_count_and_watch_is_read_in_order_and_there_may_be_none(tmp_path: Path) -> None:
    assert read_watches(tmp_path) == []
    watches = [WATCH, Watch(watched=[], why_not="a debugger")]
    for number, watch in enumerate(watches, start=1):
        (tmp_path / f"watch-{number}.json").write_bytes(msgspec.json.encode(watch))
    assert read_watches(tmp_path) == watches
    counts = [
        Count(step=step, moment="step", holders=[COUNTED], containers=[CONTAINER] if step else []) for step in range(11)
    ]
    for number, count in enumerate(counts, start=1):
        (tmp_path / f"holders-{number}.json").write_bytes(msgspec.json.encode(count))
    assert read_counts(tmp_path) == counts


def old_holder(**fields: object) -> dict[str, Any]:
    """As efprof wrote it when one file had two counts."""
    numbers = {"tensors": (3, 7), "tensor_bytes": (12, 28), "graph_nodes": (0, 5), "graph_bytes": (0, 50)}
    both = {f"{name}_{when}": one[at] for name, one in numbers.items() for at, when in enumerate(("before", "after"))}
    place = {"path": "train.history", "scope": "local", "owner": "train", "name": "history", "file": "train.py"}
    return {**place, "type": "list", "length_before": 3, "length_after": 7, **both, **fields}


def test_two_counts_of_an_older_recording_become_one_each(tmp_path: Path) -> None:
    holders = [old_holder(max_length=9), old_holder(path="train.new", tensors_before=0)]
    old = {"step_before": 8, "step_after": 12, "holders": holders, "is_partial": True}
    (tmp_path / "holders-1.json").write_bytes(msgspec.json.encode(old))
    before, after = read_counts(tmp_path)
    assert [(one.step, one.moment, one.is_partial) for one in (before, after)] == [
        (8, "step", True),
        (12, "step", True),
    ]
    (only,) = before.holders
    assert (only.path, only.length, only.tensors, only.max_length, only.number) == ("train.history", 3, 3, 9, None)
    assert [(one.path, one.length, one.graph_nodes, one.tensor_bytes) for one in after.holders] == [
        ("train.history", 7, 5, 28),
        ("train.new", 7, 5, 28),
    ]
    assert all(one.value_bytes == one.tensor_bytes for one in after.holders), "what views take was not counted then"


def test_a_run_without_counts_says_how_to_have_some(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="after 3, 6, 10 and more steps"):
        read_counts(tmp_path)


@pytest.mark.parametrize("text", ["{", "{}", '{"step": "one", "moment": "step", "holders": []}', '{"step_before": 1}'])
def test_what_efprof_never_wrote_is_refused_by_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "holders-1.json").write_text(text)
    with pytest.raises(UnreadableInput, match=r"holders-1\.json"):
        read_counts(tmp_path)


def link(owner: str, name: str) -> CycleLink:
    return CycleLink(kind="attribute", owner=owner, name=name, file="train.py", can_be_weak=True)


def cycle_of(*links: CycleLink) -> Cycle:
    return Cycle(links=list(links), count=12, tensors=3, tensor_bytes=1000, graph_nodes=0, graph_bytes=0)


def test_a_missing_and_a_foreign_file_are_refused_by_name_and_what_was_written_is_read(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match=r"cycles-1\.json is missing"):
        read_cycles(tmp_path)
    (tmp_path / CYCLES_FILE).write_text('{"num_read": "many"}')
    with pytest.raises(UnreadableInput, match=r"cycles-1\.json is not what efprof writes"):
        read_cycles(tmp_path)
    collection = LargeCollection(at_ns=1, before_bytes=200, freed_bytes=100)
    cycle = cycle_of(link("Step", "noise"), link("Noise", "step"))
    assert cycle.path == "Step.noise -> Noise.step -> Step"
    found = CollectedGarbage(num_read=9, num_large=1, collections=[collection], cycles=[cycle])
    (tmp_path / CYCLES_FILE).write_bytes(msgspec.json.encode(found))
    assert read_cycles(tmp_path) == found
