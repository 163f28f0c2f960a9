"""retained_graph: fires on the line that was seen to keep graphs, is silent where none are kept, abstains on little."""

from pathlib import Path
from typing import Any

import pytest

from efprof.artifacts.holders import Counted
from efprof.audits.growing_tensors import growing_tensors
from efprof.audits.memory_growth import memory_growth
from efprof.audits.retained_graph import retained_graph
from efprof.model import CodeEdit, Finding, ThinEvidence
from efprof.units import MIB
from tests.audits.growing_runs import TRAIN, counts_of, graphs, leaking_run, leaking_steps, plain, seen, watch_of
from tests.support.builders import make_steps


def finding_of(folder: Path, source: str = TRAIN, *, line: int = 8, holder: Any = graphs, **fields: Any) -> Finding:
    """The one finding of a leaking run whose line was seen."""
    watches = [watch_of(seen(f"train.py:{line}:train"))]
    defaults = {"sources": {"train.py": source}, "watches": watches}
    (finding,) = retained_graph(leaking_run(folder, holder, **{**defaults, **fields})).findings
    return finding


def test_it_blames_the_line_that_was_seen_writes_the_edit_and_predicts_the_rise(tmp_path: Path) -> None:
    finding = finding_of(tmp_path)
    assert str(finding.blame) == "train.py:8"
    assert finding.fix.changes == (
        CodeEdit(
            file="train.py", line=8, old="        history.append(loss)", new="        history.append(loss.detach())"
        ),
    )
    assert finding.fix.applicability == "review"
    assert finding.headline == "`history` keeps tensors with their graphs"
    assert "1.00 MiB per step" in finding.message
    gain = finding.gain
    assert gain.peak_bytes == pytest.approx(59 * MIB, rel=0.01)
    assert gain.peak_bytes_interval == pytest.approx((58 * MIB, 60 * MIB), rel=0.01)
    assert (gain.basis, gain.until_step) == ("measured bound", None)


def test_of_graphs_in_a_deque_of_many_it_is_told_what_they_take_in_the_end(tmp_path: Path) -> None:
    finding = finding_of(tmp_path, holder=lambda n: graphs(n, type="deque", max_length=10_000))
    assert finding.message.startswith("Memory grows 1.00 MiB per step, up to 9.8")
    assert "last about" not in finding.message
    assert finding.severity == "low"  # by itself: what it costs this run comes on top


def test_it_predicts_nothing_of_the_tensors_that_detaching_leaves(tmp_path: Path) -> None:
    half = {"graph_nodes": 1}
    finding = finding_of(
        tmp_path, holder=lambda n: graphs(n, tensor_bytes=n * MIB // 2, value_bytes=n * MIB // 2,
                                          graph_bytes=n * MIB // 2, **half),
    )  # fmt: skip
    assert finding.gain.peak_bytes == pytest.approx(59 * MIB / 2, rel=0.02)
    assert "leaves the tensors themselves, 512 KiB of 1.00 MiB per step" in finding.fix.summary


def test_counts_alone_are_evidence_where_memory_shows_no_trend(tmp_path: Path) -> None:
    """Memory stands still, as where something else shrinks; or is not read at all."""
    still = finding_of(tmp_path / "still", steps=leaking_steps(bytes_per_step=0))
    assert "Retained memory alone does not show it" in still.why
    assert still.gain.peak_bytes == pytest.approx(60 * MIB, rel=0.01)
    unread = finding_of(tmp_path / "unread", steps=make_steps(60, memory=[]))
    assert str(unread.blame) == "train.py:8"
    assert "3 counts from step 19 to step 59" in unread.why
    assert "Of memory no trend is known" in str(unread.evidence)


def test_where_no_line_was_seen_the_owner_is_blamed_and_without_that_the_call_of_backward(tmp_path: Path) -> None:
    finding = finding_of(tmp_path, watches=[])
    assert finding.blame.text == "def train(model, loader, optimizer):"
    assert "its lines were not watched" in finding.why
    assert finding.fix.applicability == "manual"
    finding = finding_of(
        tmp_path / "second", watches=[], holder=lambda n: graphs(n, scope="global", owner="train", file=None)
    )
    assert str(finding.blame) == "train.py:6"


CAUGHT = """\
def train(model, loader):
    errors = []
    for x in loader:
        try:
            model(x).backward()
        except ValueError as error:
            errors.append(error)
"""


def errors(entries: int) -> Counted:
    return plain(entries, path="train.errors", name="errors", graph_nodes=entries, entry=["ValueError"])


def test_an_error_is_kept_without_its_traceback_and_with_it_goes_all_that_it_keeps(tmp_path: Path) -> None:
    watches = [watch_of(seen("train.py:7:train"), path="train.errors")]
    finding = finding_of(tmp_path, CAUGHT, holder=errors, watches=watches)
    (change,) = finding.fix.changes
    assert isinstance(change, CodeEdit)
    assert change.new.strip() == "errors.append(error.with_traceback(None))"
    assert finding.fix.applicability == "review"
    assert finding.gain.peak_bytes == pytest.approx(59 * MIB, rel=0.01)


def test_a_copy_is_kept_of_a_large_storage(tmp_path: Path) -> None:
    """`F.mse_loss` gives a number whose storage is the whole elementwise result."""
    finding = finding_of(tmp_path, holder=lambda n: graphs(n, tensor_bytes=MIB * n, value_bytes=4 * n, graph_bytes=0))
    assert "history.append(loss.detach().clone())" in str(finding.fix.changes)
    assert "`.item()`" in finding.fix.summary


def test_a_running_total_on_an_attribute_is_cut_at_the_line_that_binds_it(tmp_path: Path) -> None:
    source = "class Trainer:\n    def step(self, loss):\n        loss.backward()\n        self.total += loss\n"
    fields = {"path": "Trainer.total", "scope": "attribute", "owner": "Trainer", "name": "total", "type": "Tensor"}
    finding = finding_of(
        tmp_path,
        source,
        holder=lambda n: graphs(n, length=0, tensors=1, number=None, **fields),
        watches=[watch_of(seen("train.py:4:Trainer.step", "bound", entries=0), path="Trainer.total",
                          scope="attribute", number=None)],
    )  # fmt: skip
    assert str(finding.blame) == "train.py:4"
    assert finding.fix.applicability == "review"
    assert "self.total += loss.detach()" in str(finding.fix.changes)


def test_two_holders_are_two_findings_that_share_the_slope(tmp_path: Path) -> None:
    counts = counts_of(lambda n: graphs(n, graph_bytes=MIB * n // 2))
    for count, other in zip(counts, counts_of(lambda n: plain(n // 2, path="train.outputs", name="outputs", number=2)),
                            strict=True):  # fmt: skip
        count.holders += other.holders
    watches = [watch_of(seen()), watch_of(seen("train.py:9:train"), path="train.outputs", number=2)]
    run = leaking_run(tmp_path, counts=counts, watches=watches)
    findings = (*retained_graph(run).findings, *growing_tensors(run).findings)
    assert [str(finding.blame) for finding in findings] == ["train.py:8", "train.py:9"]
    assert sum(finding.gain.peak_bytes or 0 for finding in findings) == pytest.approx(59 * MIB, rel=0.02)


def test_what_is_bounded_or_without_graphs_is_silent(tmp_path: Path) -> None:
    counts = counts_of(lambda n: graphs(min(n, 40)))
    run = leaking_run(tmp_path, counts=counts, steps=leaking_steps(bytes_per_step=0))
    examination = retained_graph(run)
    assert examination.findings == memory_growth(run).findings == ()
    assert "`history` is bounded: it has not grown since step 39" in examination.looked_at
    assert retained_graph(leaking_run(tmp_path / "second", plain)).findings == ()


def test_what_was_counted_once_to_grow_is_told_where_memory_grows_as_well_and_else_not_judged(tmp_path: Path) -> None:
    run = leaking_run(tmp_path, counts=counts_of(graphs, steps=(19, 39)), steps=leaking_steps(bytes_per_step=0))
    with pytest.raises(ThinEvidence, match="it was counted to grow only once"):
        retained_graph(run)
    assert str(finding_of(tmp_path / "second", counts=counts_of(graphs, steps=(19, 39))).blame) == "train.py:8"
    with pytest.raises(ThinEvidence, match="10 steps"):
        retained_graph(leaking_run(tmp_path / "third", steps=leaking_steps(10), counts=[], watches=[]))
