"""Which line is blamed for memory that grows, and for how much of it."""

import re
from pathlib import Path

import msgspec
import pytest

from efprof.artifacts.holders import Holder, HolderCensus
from efprof.audits.growing_tensors import growing_tensors
from efprof.audits.memory_growth import memory_growth
from efprof.audits.retained_graph import retained_graph
from efprof.facts.growth_suspects import GrowthSuspect, GrowthSuspects
from efprof.facts.run import Run
from efprof.model import CodeEdit, Table
from efprof.units import MIB
from tests.audits.growing_runs import TRAIN, census, leaking_steps
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


def audited(folder: Path, source: str, *holders: Holder) -> Run:
    """The run that those holders were counted in."""
    counted = HolderCensus(step_before=10, step_after=14, holders=list(holders))
    return write_run(folder, steps=leaking_steps(), sources={"train.py": source}, censuses=[counted])


def test_headline_and_fix_name_each_holder_with_a_bound_of_its_own(tmp_path: Path) -> None:
    holders = [grown("train.seen['a']", 0.8), grown("train.seen['b']", 0.2, type="Queue")]
    (finding,) = growing_tensors(audited(tmp_path, WATCHED, *holders)).findings
    assert finding.headline == "`seen['a']` and `seen['b']` keep tensors"
    first, second = (int(text.replace(",", "")) for text in re.findall(r"; ([\d,]+) entries", finding.fix.summary))
    assert second == pytest.approx(4 * first, rel=0.02)
    assert "`collections.deque(maxlen=" in finding.fix.summary
    assert "`maxsize=" in finding.fix.summary


def test_of_many_holders_so_many_are_named_as_a_sentence_holds(tmp_path: Path) -> None:
    holders = [grown(f"train.seen['{name}']", 0.25) for name in "abcd"]
    (finding,) = growing_tensors(audited(tmp_path, WATCHED, *holders)).findings
    assert finding.headline == "`seen['a']`, `seen['b']` and 2 more keep tensors"


def test_of_holders_that_one_line_feeds_those_that_the_program_bounds_are_left_out(tmp_path: Path) -> None:
    source = WATCHED + "        if len(seen['a']) > 500:\n            seen['a'].pop(0)\n"
    run = audited(tmp_path, source, grown("train.seen['a']", 0.75), grown("train.seen['b']", 0.25))
    examination = growing_tensors(run)
    (finding,) = examination.findings
    assert finding.headline == "`seen['b']` keeps tensors"
    assert finding.gain.peak_bytes == pytest.approx(59 * MIB / 4, rel=0.01)
    assert "`seen['a']` keeps tensors, and is bounded at train.py:12" in examination.looked_at


def graphs(name: str, share: float) -> Holder:
    """A list of losses whose graphs grew by this share of a MiB per step, a tenth of it tensors."""
    after = {"graph_bytes_after": round((10 + 3.6 * share) * MIB), "tensor_bytes_after": 40 + round(0.4 * share * MIB)}
    nodes = {"graph_nodes_before": 100, "graph_nodes_after": 101}
    (holder,) = census(path=f"train.{name}", name=name, tensor_bytes_before=40, **after, **nodes).holders
    return holder


BOTH = TRAIN.replace("history.append(loss)", "history.append(loss); kept.append(-loss)")


def test_values_that_one_line_puts_into_two_holders_are_both_detached(tmp_path: Path) -> None:
    run = audited(tmp_path, BOTH, graphs("history", 0.75), graphs("kept", 0.25))
    (finding,) = retained_graph(run).findings
    assert finding.headline == "`history` and `kept` keep tensors with their graphs"
    (change,) = finding.fix.changes
    assert isinstance(change, CodeEdit)
    assert change.new.strip() == "history.append(loss.detach()); kept.append((-loss).detach())"
    assert finding.gain.peak_bytes == pytest.approx(0.9 * 59 * MIB, rel=0.01)


def test_states_that_one_call_carries_are_cut_off_where_each_enters_it(tmp_path: Path) -> None:
    source = TRAIN.replace("history.append(loss)", "out, h, c = lstm(x, h, c)")
    states = [msgspec.structs.replace(graphs(name, 0.5), type="Tensor") for name in ("h", "c")]
    (finding,) = retained_graph(audited(tmp_path, source, *states)).findings
    (change,) = finding.fix.changes
    assert isinstance(change, CodeEdit)
    assert change.new.strip() == "out, h, c = lstm(x, h.detach(), c.detach())"
    assert finding.fix.applicability == "review"


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
    assert finding.headline == "`Adam.param_groups` is given more and more"
    assert "Take this call out of the loop" in finding.fix.summary
    assert growing_tensors(run).findings == ()


EPOCHS = """\
def train(model, loader, optimizer):
    {before}
    for epoch in range(9):
        {within}
        for x in loader:
            loss = model(x)
            loss.backward()
            optimizer.step()
"""


@pytest.mark.parametrize(("before", "within", "is_known"), [("pass", ADD, True), (ADD, "pass", False)])
def test_a_line_of_the_epochs_that_gives_a_librarys_object_more_is_blamed_one_before_them_not(
    tmp_path: Path, before: str, within: str, is_known: bool
) -> None:
    counted = HolderCensus(step_before=10, step_after=14, holders=[library_holder()])
    source = EPOCHS.format(before=before, within=within)
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": source}, censuses=[counted])
    (finding,) = memory_growth(run).findings
    assert (finding.blame.text == ADD) is is_known


FED = """\
def train(model, loader, optimizer):
    for x in loader:
        h = encoded(x)
        y = model(h)
        loss = y.mean()
        loss.backward()
        optimizer.step()
        recent.get().clear()
        recent.set((*recent.get(), h))
        weakref.finalize(x, print, h)
        h.next = None
        h.previous = x
        model.register_forward_hook(lambda *_: h)
        h.register_hook(lambda gradient: x)

@lru_cache(maxsize=None)
def encoded(x):
    return encode(x)
"""


@pytest.mark.parametrize(
    ("path", "fields", "line"),
    [
        ("train.recent", {"type": "ContextVar", "scope": "global"}, "recent.set((*recent.get(), h))"),
        ("train.encoded", {"type": "_lru_cache_wrapper", "scope": "global"}, "return encode(x)"),
        ("weakref.finalize", {"scope": "global", "owner": "weakref", "file": None}, "weakref.finalize(x, print, h)"),
        ("Tensor.previous", {"scope": "attribute", "owner": "Tensor", "file": None}, "h.previous = x"),
        ("Tensor._backward_hooks", {"scope": "attribute", "owner": "Tensor", "file": None}, "h.register_hook("),
        ("Linear._forward_hooks", {"scope": "attribute", "owner": "Linear", "file": None}, "model.register_forward_"),
        ("Tensor.next", {"scope": "attribute", "owner": "Tensor", "file": None}, None),
    ],
)
def test_what_python_and_torch_keep_is_blamed_on_the_line_of_the_steps_that_feeds_it(
    tmp_path: Path, path: str, fields: dict[str, object], line: str | None
) -> None:
    (suspect,) = suspects_of(tmp_path, FED, grown(path, 1.0, **fields))
    assert suspect.known_by == ("feeder" if line else "loop")
    assert line is None or suspect.blame.text.startswith(line)


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("train.recent", {"type": "ContextVar", "scope": "global"}, "Reset `train.recent`"),
        ("train.encoded", {"type": "_lru_cache_wrapper", "scope": "global"}, "maxsize=N"),
        ("Tensor.previous", {"scope": "attribute", "owner": "Tensor", "file": None}, "Delete `.previous`"),
    ],
)
def test_what_to_do_depends_on_what_keeps_it(tmp_path: Path, path: str, fields: dict[str, object], words: str) -> None:
    counted = HolderCensus(step_before=10, step_after=14, holders=[grown(path, 1.0, **fields)])
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": FED}, censuses=[counted])
    (finding,) = memory_growth(run).findings
    assert words in finding.fix.summary


def test_a_line_before_the_steps_that_gives_it_something_is_not_blamed_and_the_holder_is_named(tmp_path: Path) -> None:
    counted = HolderCensus(step_before=10, step_after=14, holders=[library_holder()])
    source = PROMPTS.format(before=ADD, within="pass")
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": source}, censuses=[counted])
    (finding,) = memory_growth(run).findings
    assert str(finding.blame) == "train.py:6"
    assert "`Adam.param_groups`, which was counted and grew" in finding.fix.summary
    assert "What grew is `Adam.param_groups`" in str(finding.evidence)
    assert "no variable of the program" not in str(finding.evidence)


LOGGED = """\
def train(model, loader, optimizer):
    for step, x in enumerate(loader):
        optimizer.zero_grad()
        loss = model(x)
        scale = torch.log(x)
        loss.backward()
        optimizer.step()
        logger.info("step %d", step)
        logger.info(f"{{loss}}")
        {line}
"""


@pytest.mark.parametrize(
    ("line", "is_blamed"),
    [
        ("logger.info('%s', loss)", True),
        ("logger.log(INFO, '%s', loss)", True),
        ("logger.info('loss', extra={'loss': loss})", True),
        ("logger.info('%.3f', loss.item())", False),
    ],
)
@pytest.mark.parametrize("holder", ["Logger.handlers", "MemoryHandler.buffer"])
def test_of_records_that_a_handler_keeps_the_line_that_logs_an_object_is_blamed(
    tmp_path: Path, holder: str, line: str, is_blamed: bool
) -> None:
    log = grown(holder, 1.0, scope="attribute", owner=holder.partition(".")[0], file=None)
    counted = HolderCensus(step_before=10, step_after=14, holders=[log])
    source = LOGGED.format(line=line)
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": source}, censuses=[counted])
    (finding,) = memory_growth(run).findings
    assert finding.blame.text == (line if is_blamed else "loss.backward()")
    assert ("Log a number" in finding.fix.summary) is is_blamed
    assert holder in str(finding)


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
        ("maxsize=500", "Thread(target=writer, args=(outbox,)).start()", "", False),
        ("500", "", "", False),
        ("9", "", "", True),
        ("", "", "if x.step % 500 == 0:\n            while not outbox.empty():\n                outbox.get()", False),
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
