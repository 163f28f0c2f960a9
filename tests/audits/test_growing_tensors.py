"""growing_tensors: fires on the line that was seen to keep tensors, leaves graphs to retained_graph, abstains."""

from pathlib import Path
from typing import Any

import pytest

from efprof.audits.growing_tensors import growing_tensors
from efprof.audits.memory_growth import memory_growth
from efprof.audits.retained_graph import retained_graph
from efprof.model import Finding, ThinEvidence
from efprof.units import GIB, MIB
from tests.audits.growing_runs import TRAIN, counts_of, graphs, leaking_run, leaking_steps, plain, seen, watch_of
from tests.support.builders import loader_built

SOURCE = TRAIN.replace("history.append(loss)", "history.append(x)")


def finding_of(folder: Path, *, holder: Any = plain, **fields: Any) -> Finding:
    run = leaking_run(folder, holder, **{"sources": {"train.py": SOURCE}, **fields})
    (finding,) = growing_tensors(run).findings
    assert retained_graph(run).findings == memory_growth(run).findings == ()
    return finding


def test_it_blames_the_line_that_was_seen_and_bounds_the_holder(tmp_path: Path) -> None:
    finding = finding_of(tmp_path)
    assert str(finding.blame) == "train.py:8"
    assert "collections.deque(maxlen=" in finding.fix.summary
    assert finding.gain.peak_bytes == pytest.approx(59 * MIB, rel=0.01)
    assert finding.headline == "`history` keeps tensors"


BOUNDS = (
    "history.append(x); history.pop(0) if len(history) > 500 else None",
    "history.append(x) if len(history) < 500 else None",
    "history.append(x); history = history[-500:]",
    "history.append(x); del history[:-500]",
    "history.append(x); history[:] = history[-500:]",
    "history = [] if y else history; history.append(x)\n        if not y: history = []",
    "history.append(x)\n        if not y: history, y = [], 1",
    "history.append(x)\n        if not y: y = history = list()",
)


@pytest.mark.parametrize("statement", BOUNDS)
def test_in_a_short_run_a_holder_whose_code_bounds_it_may_still_be_filling(statement: str, tmp_path: Path) -> None:
    sources = {"train.py": SOURCE.replace("history.append(x)", statement)}
    finding = finding_of(tmp_path / "short", sources=sources)
    assert finding.may_be_filling
    assert "60 entries so far." in finding.message
    counts = counts_of(plain, steps=(19, 39, 79, 159, 249))
    long = finding_of(tmp_path / "long", counts=counts, steps=leaking_steps(250), sources=sources)
    assert not long.may_be_filling


def test_what_is_known_by_another_name_or_bounds_itself_may_be_filling_too(tmp_path: Path) -> None:
    alias = SOURCE.replace("history.append(x)", "kept.append(x); kept.pop(0) if len(kept) > 500 else None")
    assert finding_of(tmp_path / "alias", sources={"train.py": alias}).may_be_filling
    itself = SOURCE + "class Bounded(list):\n    def add(self, x):\n        del self[:-500]\n"
    holder = lambda n: plain(n, type="Bounded")  # noqa: E731
    assert finding_of(tmp_path / "itself", holder=holder, sources={"train.py": itself}).may_be_filling


DATA_SET = """\
class Pictures(Dataset):
    def __getitem__(self, index):
        name = self.names[index]
        if index not in self.cache:
            self.cache[index] = self.load(name)
        return self.cache[index]
"""


def cached(folder: Path, *, source: str = DATA_SET, item_bytes: int = MIB, num_steps: int = 250) -> Finding:
    """What is told of a data set of 1,280 pictures that keeps each, of which as many as there were steps were seen."""
    fields = {"path": "Pictures.cache", "owner": "Pictures", "name": "cache", "type": "dict"}
    sizes = {"tensor_bytes": item_bytes, "value_bytes": item_bytes}
    counts = counts_of(
        lambda n: plain(n, **fields, **{name: size * n for name, size in sizes.items()}),
        steps=(19, num_steps // 2, num_steps - 1),
    )
    return finding_of(
        folder,
        counts=counts,
        watches=[watch_of(seen("train.py:5:Pictures.__getitem__"), path="Pictures.cache", scope="attribute")],
        steps=leaking_steps(num_steps, item_bytes),
        sources={"train.py": source},
        events=[loader_built(num_batches=80, batch_size=16)],
    )


def test_what_a_data_set_keeps_by_its_index_is_filling_while_items_are_left_and_memory_can_hold_all(
    tmp_path: Path,
) -> None:
    assert cached(tmp_path / "early").may_be_filling
    tried = DATA_SET.replace("if index not in self.cache", "if self.cache.get(index) is None")
    assert cached(tmp_path / "tried", source=tried).may_be_filling
    assert not cached(tmp_path / "too much", item_bytes=GIB // 40).may_be_filling, "32 GiB of 16"
    assert not cached(tmp_path / "past its end", num_steps=1400).may_be_filling


@pytest.mark.parametrize("key", ["id(index)", "id(name)", "self.num_drawn", "(index, random())"])
def test_what_a_data_set_keeps_by_keys_that_need_not_come_again_is_told_at_once(key: str, tmp_path: Path) -> None:
    assert not cached(
        tmp_path,
        source=DATA_SET.replace("index not in", f"{key} not in").replace("self.cache[index]", f"self.cache[{key}]"),
    ).may_be_filling
    elsewhere = DATA_SET.replace("__getitem__", "__call__")
    assert not cached(tmp_path / "elsewhere", source=elsewhere, num_steps=60).may_be_filling


@pytest.mark.parametrize(
    "statement",
    [
        "history.append(x)",
        "history.append(x)\n        y.pop(0)",
        "history.append(x); print(len(history), len(history) == 0)",
    ],
)
def test_a_holder_whose_code_takes_nothing_out_is_told_at_once(statement: str, tmp_path: Path) -> None:
    finding = finding_of(tmp_path, sources={"train.py": SOURCE.replace("history.append(x)", statement)})
    assert not finding.may_be_filling
    assert "filling" not in finding.message


LOCAL = "def report():\n    for _ in range(3):\n        history = []\n    del history[:]\n"
ATTRIBUTE = "class Other:\n    def report(self):\n        self.history.clear()\n"
ARGUMENT = "def trim(history):\n    del history[:-500]\n"
GLOBAL = "def trim():\n    del history[:-500]\n"


@pytest.mark.parametrize(
    ("scope", "others"),
    [
        *(("local", others) for others in (LOCAL, ATTRIBUTE, GLOBAL)),
        *(("attribute", others) for others in (LOCAL, GLOBAL)),
        *(("global", others) for others in (LOCAL, ATTRIBUTE)),
    ],
)
def test_another_variable_of_the_same_name_is_not_taken_for_the_holder(scope: str, others: str, tmp_path: Path) -> None:
    assert not of_scope(scope, others, tmp_path).may_be_filling


@pytest.mark.parametrize(
    ("scope", "others"),
    [("local", ARGUMENT), ("attribute", ATTRIBUTE), ("attribute", ARGUMENT), ("global", GLOBAL), ("global", ARGUMENT)],
)
def test_the_holder_is_known_in_another_function(scope: str, others: str, tmp_path: Path) -> None:
    assert of_scope(scope, others, tmp_path).may_be_filling


def of_scope(scope: str, others: str, folder: Path) -> Finding:
    """Of a holder of that scope, in a program that has another function too."""
    owner, fed = {"local": ("train", "history"), "attribute": ("Net", "model.history"), "global": ("train", "history")}[
        scope
    ]
    source = SOURCE.replace("history.append", f"{fed}.append")
    if scope == "global":
        source = "history = []\n" + source.replace("    history = []\n", "")
    fields = {"path": f"{owner}.history", "scope": scope, "owner": owner}
    watches = [watch_of(seen(), path=fields["path"], scope=scope)]
    return finding_of(
        folder, holder=lambda n: plain(n, **fields), watches=watches, sources={"train.py": source + others}
    )


def test_little_per_step_is_much_where_steps_are_so_short_that_it_fills_memory_within_a_day(tmp_path: Path) -> None:
    """1 KiB in each step of 16 GiB of memory: full within a day below 5.1 ms."""
    for step_ms, num_findings in ((4, 1), (6, 0)):
        steps = leaking_steps(bytes_per_step=0)
        for record in steps:
            record.started_ns = record.step * step_ms * 1_000_000
        counts = counts_of(lambda n: plain(n, tensor_bytes=1024 * n, value_bytes=1024 * n))
        run = leaking_run(tmp_path / str(step_ms), counts=counts, steps=steps)
        assert len(growing_tensors(run).findings) == num_findings


def test_a_repeated_loader_is_iterated_anew_and_batches_are_no_numbers(tmp_path: Path) -> None:
    fix = finding_of(tmp_path / "cycle", holder=lambda n: plain(n, type="cycle")).fix
    assert "while True: yield from loader" in fix.summary
    batches = finding_of(tmp_path / "batches", holder=lambda n: plain(n, entry=["list", "Tensor", "Tensor"])).fix
    assert "don't keep these tensors" in batches.summary
    assert ".item()" not in batches.summary


def test_a_cached_function_is_to_blame_not_its_caller(tmp_path: Path) -> None:
    fields = {"path": "train.cache_info", "name": "cache_info", "type": "lru_cache"}
    watches = [watch_of(seen(), path="train.cache_info")]
    assert str(finding_of(tmp_path, holder=lambda n: plain(n, **fields), watches=watches).blame) == "train.py:1"


def test_hooks_of_each_step_are_removed(tmp_path: Path) -> None:
    fields = {"path": "Net._forward_pre_hooks", "name": "_forward_pre_hooks", "owner": "Net", "type": "OrderedDict"}
    watches = [watch_of(seen(is_within_call=True), path="Net._forward_pre_hooks")]
    finding = finding_of(tmp_path, holder=lambda n: plain(n, **fields), watches=watches)
    assert finding.headline == "`_forward_pre_hooks` keeps tensors"
    assert "handle.remove()" in finding.fix.summary


def test_of_a_small_part_of_a_large_storage_a_copy_is_kept(tmp_path: Path) -> None:
    source = SOURCE.replace("append(x)", "append(x[:8, 0])")
    sources = {"train.py": source.replace("loss.backward()\n", "loss.backward(); x.square()\n")}
    finding = finding_of(tmp_path, holder=lambda n: plain(n, value_bytes=1024 * n), sources=sources)
    assert "history.append(x[:8, 0].clone())" in str(finding.fix.changes)
    assert finding.fix.applicability == "safe"
    assert finding.gain.peak_bytes == pytest.approx(59 * MIB, rel=0.01)


def test_of_several_such_parts_copies_are_advised_to_be_kept(tmp_path: Path) -> None:
    sources = {"train.py": SOURCE.replace("append(x)", "append({'a': x[0], 'b': x[1]})")}
    holder = {"value_bytes": 1024, "entry": ["dict", "Tensor", "Tensor"]}
    finding = finding_of(tmp_path, holder=lambda n: plain(n, **holder), sources=sources)
    assert finding.fix.summary.startswith("Keep copies (`.clone()`): what `history` keeps are small parts of tensors")
    assert finding.fix.changes == ()


def test_a_run_of_a_buffer_that_may_fill_or_without_counts_is_not_judged(tmp_path: Path) -> None:
    counts = counts_of(lambda n: plain({20: 100, 40: 160, 60: 180}[n], type="dict"))
    with pytest.raises(ThinEvidence, match=r"`train.history` .* it may still be filling; record a longer run"):
        growing_tensors(leaking_run(tmp_path / "first", counts=counts))
    with pytest.raises(ThinEvidence, match="a trend needs 20"):
        growing_tensors(leaking_run(tmp_path / "second", counts=[], watches=[], steps=leaking_steps(10)))


def test_the_object_of_a_library_is_named_with_what_ends_it(tmp_path: Path) -> None:
    """`model.register_buffer(f"seen{step}", x)` in every step."""
    fields = {"path": "Net._buffers", "name": "_buffers", "owner": "Net", "scope": "attribute", "type": "dict"}
    watches = [watch_of(seen(is_within_call=True), path="Net._buffers", scope="attribute")]
    finding = finding_of(tmp_path, holder=lambda n: plain(n, **fields), watches=watches)
    assert str(finding.blame) == "train.py:8"
    assert "Register the buffer once" in finding.fix.summary


def test_graphs_and_detached_scalars_are_not_its_business(tmp_path: Path) -> None:
    assert growing_tensors(leaking_run(tmp_path, graphs)).findings == ()
    counts = counts_of(lambda n: plain(n, tensor_bytes=4 * n, value_bytes=4 * n))
    run = leaking_run(tmp_path / "second", counts=counts, steps=leaking_steps(bytes_per_step=0))
    examined = growing_tensors(run)
    assert examined.findings == ()
    assert examined.looked_at.endswith("grows by 4 B per step, too little to matter"), "but it is said"
