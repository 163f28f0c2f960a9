"""growing_tensors: fires on the statement that keeps tensors without graphs, and leaves graphs to retained_graph."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from efprof.artifacts.holders import HolderCensus
from efprof.audits.growing_tensors import growing_tensors
from efprof.audits.memory_growth import memory_growth
from efprof.audits.retained_graph import retained_graph
from efprof.model import ThinEvidence
from efprof.units import MIB
from tests.audits.growing_runs import TRAIN, census, leaking_steps
from tests.builders import GPU, write_run

SOURCE = TRAIN.replace("history.append(loss)", "history.append(x)")


def plain(num_bytes: int = MIB, **fields: object) -> HolderCensus:
    """A list that grew by one tensor of that size per step, without a graph."""
    return census(
        graph_nodes_before=0, graph_nodes_after=0, graph_bytes_before=0, graph_bytes_after=0,
        tensor_bytes_before=10 * num_bytes, tensor_bytes_after=14 * num_bytes, **fields,
    )  # fmt: skip


def is_found(folder: Path, source: str, counted: HolderCensus) -> bool:
    """Whether a leaking run of that program gives a finding."""
    run = write_run(folder, steps=leaking_steps(), sources={"train.py": source}, censuses=[counted])
    return bool(growing_tensors(run).findings)


def test_it_blames_the_statement_and_bounds_the_holder(tmp_path: Path) -> None:
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": SOURCE}, censuses=[plain()])
    (finding,) = growing_tensors(run).findings
    assert str(finding.blame) == "train.py:8"
    assert "collections.deque(maxlen=" in finding.fix.summary
    assert finding.gain.peak_bytes == pytest.approx(59 * MIB, rel=0.01)
    assert finding.headline == "`history` keeps tensors"
    assert retained_graph(run).findings == memory_growth(run).findings == ()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"length_after": 26}, "make it `collections.deque(maxlen=400)`"),  # four entries of 256 KiB per step
        ({"length_after": 26}, "400 entries take 1 %"),
        ({"type": "defaultdict", "length_after": 10, "tensors_after": 18}, "200 tensors take 1 %"),
        ({"type": "Tensor", "length_after": 10, "tensors_after": 10}, "What 100 steps add takes 1 %"),
    ],
)
def test_the_bound_counts_what_the_holder_counts(tmp_path: Path, fields: dict[str, Any], expected: str) -> None:
    run = write_run(
        tmp_path,
        steps=leaking_steps(),
        sources={"train.py": SOURCE},
        censuses=[plain(**fields)],
        devices=[replace(GPU, total_bytes=10_000 * MIB)],
        memory_source="CUDA allocator",
    )
    (finding,) = growing_tensors(run).findings
    assert expected in finding.fix.summary
    assert "(`.cpu()`)" in finding.fix.summary


def test_of_a_slice_a_copy_is_kept_and_no_more_than_an_upper_limit_is_promised(tmp_path: Path) -> None:
    source = SOURCE.replace("loss.backward()\n", "loss.backward()\n        x.square()\n").replace("(x)", "(x[:8, 0])")
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": source}, censuses=[plain()])
    (finding,) = growing_tensors(run).findings
    assert "history.append(x[:8, 0].clone())" in str(finding.fix.changes)
    assert finding.gain.peak_bytes == pytest.approx(59 * MIB, rel=0.01)
    assert finding.gain.peak_bytes_interval is None


def within(source: str, bound: str) -> str:
    """The program with these lines at the end of its step."""
    return source.replace("    print(", bound.replace("    ", "        ") + "    print(")


@pytest.mark.parametrize(
    "bound",
    [
        "    if len(history) > 500:\n        history = history[1:]\n",
        "    if len(history) == 500:\n        history = []\n",
        "    if 500 < len(history):\n        break\n",
        "    history = history[-500:]\n",
        "    history[:] = history[-500:]\n",
    ],
)
def test_a_container_that_is_bounded_already_only_fills_up(tmp_path: Path, bound: str) -> None:
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": within(SOURCE, bound)}, censuses=[plain()])
    examination = growing_tensors(run)
    assert examination.findings == ()
    assert "; `history` keeps tensors, and is bounded at train.py:" in examination.looked_at


@pytest.mark.parametrize("bound", ["    history.pop(0)\n", "    del history[0]\n", "    history.clear()\n"])
def test_what_each_step_takes_out_bounds_a_container_unless_it_was_seen_to_get_longer(
    tmp_path: Path, bound: str
) -> None:
    source = within(SOURCE, bound)
    assert not is_found(tmp_path / "still", source, plain(length_before=14))
    assert is_found(tmp_path / "longer", source, plain())


@pytest.mark.parametrize(
    "bound",
    [
        "    if step % 500 == 0:\n        history.clear()\n",
        "    if step < 500:\n        continue\n    history.pop(0)\n",
        "    for _ in range(step // 500):\n        history.pop(0)\n",
    ],
)
def test_a_container_that_is_emptied_now_and_then_may_get_longer_in_between(tmp_path: Path, bound: str) -> None:
    assert not is_found(tmp_path, within(SOURCE, bound), plain())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("history = []", "history = deque(maxlen=500)"),
        ("history = []", "history = deque([], 500)"),
        ("history = []", "history = deque([], limit)"),
        ("history.append(x)", "if len(history) < 500:\n            history.append(x)"),
        ("history.append(x)", "if y and len(history) < 500:\n            history.append(x)"),
        (
            "history.append(x)",
            "if len(history) >= 500:\n            history[0] = x\n        else:\n            history.append(x)",
        ),
        ("history.append(x)", "if y or len(history) >= 500:\n            continue\n        history.append(x)"),
    ],
)
def test_a_container_that_is_kept_short_only_fills_up(tmp_path: Path, old: str, new: str) -> None:
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": SOURCE.replace(old, new)}, censuses=[plain()])
    assert growing_tensors(run).findings == ()


@pytest.mark.parametrize(("argument", "num_findings"), [("history", 0), ("other", 1)])
def test_a_function_that_is_given_it_under_its_name_bounds_it(tmp_path: Path, argument: str, num_findings: int) -> None:
    source = within(SOURCE, f"    trim({argument})\n") + "def trim(history):\n    del history[:-500]\n"
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": source}, censuses=[plain()])
    assert len(growing_tensors(run).findings) == num_findings


@pytest.mark.parametrize(
    "line",
    [
        "    if len(history) > 0 and step % 100 == 0:\n        print(history[-1])\n",
        "    if len(history) > 9:\n        print(history[-1])\n",
        "    if len(history) != 0:\n        history = history\n",
        "    assert len(history) == step\n",
        "    history[-1].clear()\n",
        "    if len(history) < 9:\n        continue\n",
        "    if y and len(history) > 9:\n        break\n",
        "    if len(history) > 9:\n        history[-1] = x\n",
        "    other.history.clear()\n",
        "    self.history.clear()\n",
        "    history = history[:]\n",
        "    history = history[0:]\n",
        "    history = history[::-1]\n",
        "    if len(history) == 1:\n        history = history + [x]\n",
        "    if len(history) > 1:\n        history = [*history, x]\n",
        "    if len(history) > 1:\n        history = torch.cat([history, x])\n",
        "    if len(history) > 1:\n        history = sorted(history)\n",
    ],
)
def test_what_only_looks_at_a_container_does_not_bound_it(tmp_path: Path, line: str) -> None:
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": within(SOURCE, line)}, censuses=[plain()])
    assert len(growing_tensors(run).findings) == 1


@pytest.mark.parametrize("made", ["deque()", "deque([], None)", "deque(maxlen=None)"])
def test_a_deque_without_a_limit_is_no_bound(tmp_path: Path, made: str) -> None:
    assert is_found(tmp_path, SOURCE.replace("history = []", f"history = {made}"), plain())


@pytest.mark.parametrize(
    ("trim", "call", "is_bound"),
    [
        ("history.pop()", "if step % 500 == 0: trim(history)", True),
        ("history = list(history)\n    history.pop()", "trim(history)", False),
        ("history = history[-500:]\n    return history", "trim(history)", False),
        ("history = history[-500:]\n    return history", "history = trim(history)", True),
    ],
)
def test_a_function_that_binds_its_argument_anew_bounds_only_what_it_gives_back(
    tmp_path: Path, trim: str, call: str, is_bound: bool
) -> None:
    source = within(SOURCE, f"    {call}\n") + f"def trim(history):\n    {trim}\n"
    assert is_found(tmp_path, source, plain()) is not is_bound


@pytest.mark.parametrize(
    ("bound", "is_bound"),
    [
        ("    history.pop('last', None)\n", False),
        ("    del history['last']\n", False),
        ("    history.pop(step - 9, None)\n", True),
        ("    history.popitem()\n", True),
    ],
)
def test_taking_one_key_out_bounds_no_dictionary_that_every_step_adds_a_key_to(
    tmp_path: Path, bound: str, is_bound: bool
) -> None:
    source = SOURCE.replace("history = []", "history = {}").replace("history.append(x)", "history[step] = x")
    assert is_found(tmp_path, within(source, bound), plain(type="dict", length_before=14)) is not is_bound


@pytest.mark.parametrize(
    "other",
    [
        "def unrelated(words):\n    history = list(words)\n    while history:\n        history.pop()\n",
        "def unrelated(history):\n    history.clear()\nunrelated([])\n",
        "    history.clear()\n",
        "history = deque(maxlen=9)\n",
        "class Meter:\n    def reset(self):\n        self.history.clear()\n",
    ],
)
def test_another_variable_of_that_name_and_what_comes_after_the_loop_bound_nothing(tmp_path: Path, other: str) -> None:
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": SOURCE + other}, censuses=[plain()])
    assert len(growing_tensors(run).findings) == 1


@pytest.mark.parametrize(
    ("other", "is_bound"),
    [
        ("def unrelated(words):\n    history = list(words)\n    history.pop()\n", False),
        ("    trim()\ndef trim():\n    global history\n    del history[:-500]\n", True),
        ("    trim()\ndef trim():\n    del history[:-500]\n", True),
        ("history.pop()\n", False),
        ("history = deque(maxlen=500)\n", True),
    ],
)
def test_of_a_global_only_its_own_lines_count(tmp_path: Path, other: str, is_bound: bool) -> None:
    source = "history = []\nfor x, y in loader:\n    history.append(x)\n" + other
    holder = census(
        graph_nodes_before=0, graph_nodes_after=0, graph_bytes_before=0, graph_bytes_after=0,
        tensor_bytes_before=10 * MIB, tensor_bytes_after=14 * MIB, scope="global", owner="__main__",
    )  # fmt: skip
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": source}, censuses=[holder])
    assert bool(growing_tensors(run).findings) is not is_bound


TRAINER = """\
class Loop:
    def end(self):
        self.history.clear()

class Trainer(Loop):
    def step(self, x):
        self.history.append(x)

def train(trainer, loader):
    for x in loader:
        trainer.step(x)
        trainer.end()
"""


@pytest.mark.parametrize(
    ("old", "new", "is_bound"),
    [
        ("Trainer(Loop)", "Trainer(Loop)", True),
        ("Trainer(Loop)", "Trainer(base.Loop)", True),
        ("Trainer(Loop)", "Trainer", False),
        ("self.history.clear()", "history.clear()", False),
        ("self.history.clear()", "self.trainer.history.clear()", True),
    ],
)
def test_of_an_attribute_the_lines_of_its_own_classes_count(tmp_path: Path, old: str, new: str, is_bound: bool) -> None:
    holder = census(
        graph_nodes_before=0, graph_nodes_after=0, graph_bytes_before=0, graph_bytes_after=0,
        tensor_bytes_before=10 * MIB, tensor_bytes_after=14 * MIB, scope="attribute", owner="Trainer",
        length_before=14,
    )  # fmt: skip
    sources = {"train.py": TRAINER.replace(old, new)}
    run = write_run(tmp_path, steps=leaking_steps(), sources=sources, censuses=[holder])
    assert bool(growing_tensors(run).findings) is not is_bound


RESET = "        trainer.end()\n"


@pytest.mark.parametrize(
    ("called", "is_bound"),
    [
        (RESET, True),
        ("        if step % 100 == 0:\n            finish(trainer)\ndef finish(trainer):\n    trainer.end()\n", True),
        ("", False),
        ("    trainer.end()\n", False),
        ("    trainer.save()\ndef unused(trainer):\n    trainer.end()\n", False),
        ("library.add_callback(Trainer.end)\n", True),
    ],
)
def test_a_method_that_empties_it_bounds_it_only_where_the_loop_that_feeds_it_comes_to_it(
    tmp_path: Path, called: str, is_bound: bool
) -> None:
    holder = plain(scope="attribute", owner="Trainer", path="Trainer.history", length_before=14)
    assert is_found(tmp_path, TRAINER.replace(RESET, called), holder) is not is_bound


EPOCHS = """\
def train(model, loader, optimizer):
    history = {before}
    for epoch in range(100):
        {at_epoch}
        for x, y in loader:
            loss = model(x, y)
            loss.backward()
            optimizer.step()
            {within}
            history.append(x)
"""


@pytest.mark.parametrize(
    ("lines", "is_bound"),
    [
        ({"at_epoch": "history = []"}, True),
        ({"at_epoch": "history = list()"}, True),
        ({"within": "if step % 500 == 0: history = []"}, True),
        ({}, False),
        ({"at_epoch": "history = list(history)"}, False),
        ({"at_epoch": "history = read()"}, False),
        ({"at_epoch": "if epoch == 0: history = []"}, False),
        ({"at_epoch": "if healthy: history = []"}, False),
        ({"within": "if history is None: history = []"}, False),
        ({"at_epoch": "other = []"}, False),
        ({"at_epoch": "history[y] = []"}, False),
    ],
)
def test_a_list_that_every_epoch_makes_anew_is_bounded_one_that_is_made_once_is_not(
    tmp_path: Path, lines: dict[str, str], is_bound: bool
) -> None:
    source = EPOCHS.format(**{"before": "[]", "at_epoch": "pass", "within": "pass", **lines})
    assert is_found(tmp_path, source, plain()) is not is_bound


RENEWED = """\
class Trainer{base}:
    def __init__(self):
        self.history = []

    def {name}(self):
        self.history = []

    def step(self, x):
        self.history.append(x)

def train(trainer, loader):
    for epoch in range(100):
        {called}
        for x in loader:
            trainer.step(x)
"""


@pytest.mark.parametrize(
    ("base", "name", "called", "is_bound"),
    [
        ("", "reset", "trainer.reset()", True),
        ("", "reset", "pass", False),
        ("", "reset", "other = Trainer()", False),
        ("(Callback)", "on_epoch_end", "pass", True),
        ("(Callback)", "reset", "pass", False),
    ],
)
def test_a_method_that_makes_it_anew_bounds_it_only_where_something_is_seen_to_call_it(
    tmp_path: Path, base: str, name: str, called: str, is_bound: bool
) -> None:
    holder = plain(scope="attribute", owner="Trainer", path="Trainer.history")
    source = RENEWED.format(base=base, name=name, called=called)
    assert is_found(tmp_path, source, holder) is not is_bound


def test_lists_in_a_dictionary_are_bounded_each_by_itself(tmp_path: Path) -> None:
    kept = SOURCE.replace("history = []", "history = defaultdict(list)").replace("history.", "history[y].")
    bounds = {
        "none": kept,
        "taken out": kept.replace("    print(", "        history[y].pop(0)\n    print("),
        "made short": kept.replace("(list)", "(lambda: deque(maxlen=9))"),
        "of an item": kept.replace("    print(", "        history[y][0].clear()\n    print("),
    }
    as_many = plain(length_before=14)
    found = {
        name: len(
            growing_tensors(
                write_run(tmp_path / name, steps=leaking_steps(), sources={"train.py": text}, censuses=[as_many])
            ).findings
        )
        for name, text in bounds.items()
    }
    assert found == {"none": 1, "taken out": 0, "made short": 0, "of an item": 1}
    assert is_found(tmp_path / "more and more lists", bounds["made short"], plain())


ENTRIES = SOURCE.replace("history = []", "stats = {'train': {'outputs': [], 'seen': []}, 'last': None}").replace(
    "history.append(x)", "stats['train']['seen'].append(y)\n        stats['train']['outputs'].append(x)"
)


def entry() -> HolderCensus:
    """The list `outputs` of the dictionary, as a census spells it."""
    counted = plain()
    (holder,) = counted.holders
    holder.path, holder.name = "train.stats['train']['outputs']", "stats"
    return counted


def test_of_an_entry_of_a_dictionary_the_entry_is_named_and_its_own_statement_blamed(tmp_path: Path) -> None:
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": ENTRIES}, censuses=[entry()])
    (finding,) = growing_tensors(run).findings
    assert finding.blame.text == "stats['train']['outputs'].append(x)"
    assert finding.headline == "`stats['train']['outputs']` keeps tensors"
    assert "Bound `stats['train']['outputs']`: make it `collections.deque(maxlen=" in finding.fix.summary


@pytest.mark.parametrize(
    ("bound", "is_bound"),
    [
        ("    stats.pop('last')\n", False),
        ("    del stats['last']\n", False),
        ("    stats['train']['seen'].clear()\n", False),
        ("    if len(stats) > 3:\n        stats = dict(stats)\n", False),
        ("    stats['train']['outputs'].pop(0)\n", True),
        ("    stats[kind]['outputs'].clear()\n", True),
        ("    stats.clear()\n", True),
        ("    stats['train'].pop('outputs')\n", True),
        ("    del stats['train']['outputs'][0]\n", True),
        ("    if len(stats['train']['outputs']) > 500:\n        raise SystemExit\n", True),
    ],
)
def test_what_bounds_another_entry_does_not_bound_this_one(tmp_path: Path, bound: str, is_bound: bool) -> None:
    counted = entry()
    counted.holders[0].length_before = counted.holders[0].length_after
    assert is_found(tmp_path, within(ENTRIES, bound), counted) is not is_bound


def test_graphs_are_not_its_business(tmp_path: Path) -> None:
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": TRAIN}, censuses=[census()])
    assert growing_tensors(run).findings == ()


def test_a_slow_growth_is_silent(tmp_path: Path) -> None:
    steps = leaking_steps(bytes_per_step=3000)
    run = write_run(tmp_path, steps=steps, sources={"train.py": SOURCE}, censuses=[plain(3000)])
    assert growing_tensors(run).findings == ()


def test_a_list_that_is_as_long_as_before_is_silent(tmp_path: Path) -> None:
    steps = leaking_steps(bytes_per_step=0)
    run = write_run(tmp_path, steps=steps, sources={"train.py": SOURCE}, censuses=[plain()])
    assert growing_tensors(run).findings == ()


def test_a_short_run_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(ThinEvidence, match="10 steps"):
        growing_tensors(write_run(tmp_path, steps=leaking_steps(10), censuses=[plain()]))
