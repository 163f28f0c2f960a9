"""cycles-1.json: read as it was written, refused by name where it is not."""

from pathlib import Path

import msgspec
import pytest

from efprof.artifacts.holders import CYCLES_FILE, CollectedGarbage, Cycle, CycleLink, LargeCollection, read_cycles
from efprof.model import NotRecorded, UnreadableInput


def link(owner: str, name: str) -> CycleLink:
    return CycleLink(kind="attribute", owner=owner, name=name, file="train.py", can_be_weak=True)


def cycle_of(*links: CycleLink) -> Cycle:
    return Cycle(links=list(links), count=12, tensors=3, tensor_bytes=1000, graph_nodes=0, graph_bytes=0)


@pytest.mark.parametrize(
    ("cycle", "path"),
    [
        (cycle_of(link("Step", "me")), "Step.me -> Step"),
        (cycle_of(link("Step", "noise"), link("Noise", "step")), "Step.noise -> Noise.step -> Step"),
        (cycle_of(CycleLink(kind="class", owner="train.<locals>.Step", name="", file=None)),
         "train.<locals>.Step -> train.<locals>.Step"),
    ],
)  # fmt: skip
def test_a_cycle_is_spelled_from_its_first_object_back_to_it(cycle: Cycle, path: str) -> None:
    assert cycle.path == path


def test_a_missing_and_a_foreign_file_are_refused_by_name_and_what_was_written_is_read(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match=r"cycles-1\.json is missing"):
        read_cycles(tmp_path)
    (tmp_path / CYCLES_FILE).write_text('{"num_read": "many"}')
    with pytest.raises(UnreadableInput, match=r"cycles-1\.json is not what efprof writes"):
        read_cycles(tmp_path)
    collection = LargeCollection(at_ns=1, generation=0, before_bytes=200, freed_bytes=100, seconds=0.001)
    found = CollectedGarbage(
        num_read=9, num_large=1, collections=[collection], cycles=[cycle_of(link("Step", "noise"))]
    )
    (tmp_path / CYCLES_FILE).write_bytes(msgspec.json.encode(found))
    assert read_cycles(tmp_path) == found
