"""Which line is blamed for memory that grows, and for how much of it."""

from pathlib import Path

import pytest

from efprof.artifacts.holders import Holder, HolderCensus
from efprof.audits.growing_tensors import growing_tensors
from efprof.audits.memory_growth import memory_growth
from efprof.facts.growth_suspects import GrowthSuspect, GrowthSuspects
from efprof.model import Table
from efprof.units import MIB
from tests.audits.growing_runs import census, leaking_steps
from tests.builders import write_run

PLAIN = {"graph_nodes_before": 0, "graph_nodes_after": 0, "graph_bytes_before": 0, "graph_bytes_after": 0}

WATCHED = """\
def train(model, loader, optimizer):
    seen, other = {'a': [], 'b': []}, []
    for x, y in loader:
        loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for name in seen:
            seen[name].append(x)
        other.append(y)
"""


def grown(path: str, share: float, **fields: object) -> Holder:
    """A list of plain tensors that grew by this share of a MiB per step."""
    name = path.partition(".")[2].partition("[")[0]
    after = round((10 + 4 * share) * MIB)
    (holder,) = census(
        path=path, name=name, tensor_bytes_before=10 * MIB, tensor_bytes_after=after, **PLAIN, **fields
    ).holders  # fmt: skip
    return holder


def suspects_of(folder: Path, source: str, *holders: Holder) -> tuple[GrowthSuspect, ...]:
    """Of a run that grows by a MiB per step."""
    counted = HolderCensus(step_before=10, step_after=14, holders=list(holders))
    run = write_run(folder, steps=leaking_steps(), sources={"train.py": source}, censuses=[counted])
    return run.get(GrowthSuspects).suspects


def test_all_holders_that_one_line_feeds_are_its_one_suspect(tmp_path: Path) -> None:
    holders = [grown("train.seen['a']", 0.5), grown("train.seen['b']", 0.5)]
    (suspect,) = suspects_of(tmp_path, WATCHED, *holders)
    assert (suspect.blame.line, suspect.share) == (9, 1.0)
    assert suspect.holder is not None
    assert [one.holder.path for one in (suspect.holder, *suspect.beside)] == ["train.seen['a']", "train.seen['b']"]


def test_small_holders_that_one_line_feeds_explain_the_growth_together(tmp_path: Path) -> None:
    (suspect,) = suspects_of(tmp_path, WATCHED, *[grown("train.seen['a']", 0.12) for _ in range(8)])
    assert (suspect.blame.line, len(suspect.beside)) == (9, 7)


def test_the_same_memory_under_two_names_counts_once(tmp_path: Path) -> None:
    (suspect,) = suspects_of(tmp_path, WATCHED, grown("train.seen['a']", 0.9), grown("train.seen['b']", 0.9))
    assert suspect.beside == ()


def test_two_lines_that_keep_memory_of_their_own_share_the_slope(tmp_path: Path) -> None:
    holders = [grown("train.seen['a']", 0.3), grown("train.seen['b']", 0.3), grown("train.other", 0.4)]
    first, second = suspects_of(tmp_path, WATCHED, *holders)
    assert (first.blame.line, second.blame.line) == (9, 10)
    assert [first.share, second.share] == pytest.approx([0.6, 0.4])


def test_the_message_names_every_holder_that_the_line_feeds(tmp_path: Path) -> None:
    counted = HolderCensus(
        step_before=10, step_after=14, holders=[grown("train.seen['a']", 0.5), grown("train.seen['b']", 0.5)]
    )
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": WATCHED}, censuses=[counted])
    (finding,) = growing_tensors(run).findings
    assert "because `train.seen['a']` and `train.seen['b']` keep tensors" in finding.message


PROMPTS = """\
def train(model, loader, optimizer):
    {before}
    for x in loader:
        {within}
        loss = model(x)
        loss.backward()
        optimizer.step()
"""
ADD = "optimizer.add_param_group({'params': [prompt]})"


def library_holder() -> Holder:
    """What torch's optimizer keeps its parameters in."""
    return grown("Adam.param_groups", 0.5, scope="attribute", owner="Adam", file=None)


def test_a_line_of_the_steps_that_gives_a_librarys_object_more_is_blamed(tmp_path: Path) -> None:
    counted = HolderCensus(step_before=10, step_after=14, holders=[library_holder()])
    source = PROMPTS.format(before="pass", within=ADD)
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": source}, censuses=[counted])
    (finding,) = memory_growth(run).findings
    assert finding.blame.text == ADD
    assert finding.headline == "`Adam.param_groups` is given more by every step"
    assert "Take this call out of the loop" in finding.fix.summary
    assert growing_tensors(run).findings == ()


def test_a_line_before_the_steps_that_gives_it_something_is_not_blamed_and_the_holder_is_named(tmp_path: Path) -> None:
    counted = HolderCensus(step_before=10, step_after=14, holders=[library_holder()])
    source = PROMPTS.format(before=ADD, within="pass")
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": source}, censuses=[counted])
    (finding,) = memory_growth(run).findings
    assert str(finding.blame) == "train.py:6"
    assert "`Adam.param_groups`, which was counted and grew" in finding.fix.summary
    assert "What grew is `Adam.param_groups`" in str(finding.evidence)
    assert "no variable of the program" not in str(finding.evidence)


EVALUATED = WATCHED.replace("        for name in seen:\n            seen[name]", "        if y:\n            other")


def counts(*sizes: tuple[int, int]) -> list[HolderCensus]:
    """One census for each pair: how many MiB `train.other` had before and after."""
    return [
        HolderCensus(
            step_before=20 * place,
            step_after=20 * place + 4,
            holders=census(
                path="train.other", name="other", tensor_bytes_before=before * MIB, tensor_bytes_after=after * MIB,
                tensors_before=before, tensors_after=after, length_before=before, length_after=after, **PLAIN,
            ).holders,
        )
        for place, (before, after) in enumerate(sizes)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        ([(0, 10), (20, 20), (40, 40)], 9),
        ([(0, 4), (20, 20), (20, 20)], 6),
        ([(0, 4), (20, 20)], 6),
        ([(0, 4), (40, 44), (20, 20)], 6),
    ],
)
def test_what_is_more_in_each_census_than_in_the_one_before_grows_though_it_stood_still_in_the_last(
    tmp_path: Path, sizes: list[tuple[int, int]], line: int
) -> None:
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": EVALUATED}, censuses=counts(*sizes))
    assert run.get(GrowthSuspects).suspects[0].blame.line == line


def test_the_table_tells_between_which_steps_it_grew(tmp_path: Path) -> None:
    censuses = counts((0, 10), (20, 20), (40, 40))
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": EVALUATED}, censuses=censuses)
    (finding,) = growing_tensors(run).findings
    (table,) = [one for one in finding.evidence if isinstance(one, Table)]
    assert table.title == "What grew between step 0 and step 44"
    assert table.rows[0][2] == "0 -> 40"


QUEUED = """\
def writer(outbox):
    while outbox.get() is not None:
        pass

def train(model, loader, optimizer):
    outbox = queue.Queue({limit})
    {thread}
    for x in loader:
        loss = model(x)
        loss.backward()
        optimizer.step()
        outbox.put(x)
        {drain}
"""


@pytest.mark.parametrize(
    ("limit", "thread", "drain", "is_found"),
    [
        ("", "Thread(target=writer, args=(outbox,)).start()", "", True),
        ("", "Thread(target=lambda: outbox.get()).start()", "", True),
        ("0", "", "", True),
        ("maxsize=9", "Thread(target=writer, args=(outbox,)).start()", "", False),
        ("9", "", "", False),
        ("", "", "if full:\n            while not outbox.empty():\n                outbox.get()", False),
    ],
)
def test_a_queue_that_gets_longer_is_blamed_on_what_puts_into_it_unless_it_is_bounded(
    tmp_path: Path, limit: str, thread: str, drain: str, is_found: bool
) -> None:
    counted = HolderCensus(step_before=10, step_after=14, holders=[grown("train.outbox", 1.0, type="Queue")])
    source = QUEUED.format(limit=limit, thread=thread, drain=drain)
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": source}, censuses=[counted])
    found = growing_tensors(run).findings
    assert [one.blame.text for one in found] == (["outbox.put(x)"] if is_found else [])
