"""retained_graph: fires on the statement that keeps graphs, is silent where none are kept, abstains on little."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from efprof.artifacts.holders import HolderCensus
from efprof.audits.growing_tensors import growing_tensors
from efprof.audits.retained_graph import retained_graph
from efprof.model import CodeEdit, Finding, ThinEvidence
from efprof.units import MIB, format_about
from tests.audits.growing_runs import TRAIN, census, leaking_steps
from tests.builders import GPU, make_step, write_run


def finding_of(folder: Path, source: str = TRAIN, **holder: object) -> Finding:
    """The one finding of a leaking run with a census."""
    run = write_run(folder, steps=leaking_steps(), sources={"train.py": source}, censuses=[census(**holder)])
    (finding,) = retained_graph(run).findings
    return finding


def test_blames_the_line_that_keeps_the_loss(tmp_path: Path) -> None:
    finding = finding_of(tmp_path)
    assert str(finding.blame) == "train.py:8"
    assert finding.fix.changes == (
        CodeEdit(
            file="train.py", line=8, old="        history.append(loss)", new="        history.append(loss.detach())"
        ),
    )
    assert finding.fix.applicability == "safe"  # what is printed needs no graph
    assert "1.00 MiB per step" in finding.message
    assert "train.history" in finding.message


def test_predicts_the_rise_over_the_recorded_steps(tmp_path: Path) -> None:
    gain = finding_of(tmp_path).gain
    assert gain.peak_bytes == pytest.approx(59 * MIB, rel=0.01)
    assert gain.basis == "measured bound"


def test_the_interval_is_one_step_wider_than_that_of_the_slope(tmp_path: Path) -> None:
    gain = finding_of(tmp_path).gain
    assert gain.peak_bytes_interval == pytest.approx((58 * MIB, 60 * MIB), rel=0.001)
    assert gain.until_step is None


def test_predicts_nothing_of_the_tensors_that_detaching_leaves(tmp_path: Path) -> None:
    half = {"tensor_bytes_before": 5 * MIB, "tensor_bytes_after": 7 * MIB, "graph_bytes_after": 12 * MIB}
    finding = finding_of(tmp_path, **half)
    assert finding.gain.peak_bytes == pytest.approx(59 * MIB / 2, rel=0.01)
    assert "leaves the tensors themselves, 512 KiB of 1.00 MiB per step" in finding.fix.summary


def test_where_nearly_all_are_tensors_no_least_saving_is_promised(tmp_path: Path) -> None:
    most = {"tensor_bytes_before": MIB, "tensor_bytes_after": 5 * MIB - 16_000, "graph_bytes_after": 10 * MIB + 16_000}
    gain = finding_of(tmp_path, **most).gain
    assert gain.peak_bytes == pytest.approx(59 * 4000, rel=0.01)
    assert gain.peak_bytes_interval is not None
    assert gain.peak_bytes_interval[0] == 0


def test_where_reading_stopped_early_the_gain_says_up_to_where(tmp_path: Path) -> None:
    unread = [make_step(step, memory=[]) for step in range(60, 100)]
    run = write_run(
        tmp_path, steps=[*leaking_steps(), *unread], sources={"train.py": TRAIN}, censuses=[census()]
    )  # fmt: skip
    (finding,) = retained_graph(run).findings
    assert finding.gain.until_step == 59


CAUGHT = """\
def train(model, loader):
    errors = []
    for x in loader:
        try:
            model(x).backward()
        except ValueError as error:
            errors.append(error)
"""


def test_an_error_is_kept_without_its_traceback_and_with_it_goes_all_that_it_keeps(tmp_path: Path) -> None:
    tensors = {"tensor_bytes_before": 10 * MIB, "tensor_bytes_after": 14 * MIB, "graph_bytes_after": 10 * MIB}
    finding = finding_of(tmp_path, CAUGHT, path="train.errors", name="errors", **tensors)
    (change,) = finding.fix.changes
    assert isinstance(change, CodeEdit)
    assert change.new.strip() == "errors.append(error.with_traceback(None))"
    assert finding.fix.applicability == "review"
    assert finding.gain.peak_bytes == pytest.approx(59 * MIB, rel=0.01)


def test_of_an_error_that_is_kept_with_a_number_the_error_alone_is_changed(tmp_path: Path) -> None:
    source = CAUGHT.replace("append(error)", "append((len(errors), error))")
    finding = finding_of(tmp_path, source, path="train.errors", name="errors")
    (change,) = finding.fix.changes
    assert isinstance(change, CodeEdit)
    assert change.new.strip() == "errors.append((len(errors), error.with_traceback(None)))"


def test_an_error_that_is_kept_with_a_tensor_is_not_all_that_keeps_graphs(tmp_path: Path) -> None:
    source = CAUGHT.replace("model(x).backward()", "loss = model(x)\n            loss.backward()")
    finding = finding_of(
        tmp_path, source.replace("append(error)", "append((loss, error))"), path="train.errors", name="errors"
    )
    assert "with_traceback" not in str(finding.fix)


def test_says_at_which_step_the_run_ends(tmp_path: Path) -> None:
    run = write_run(
        tmp_path,
        steps=leaking_steps(200),
        sources={"train.py": TRAIN},
        censuses=[census()],
        devices=[replace(GPU, total_bytes=16_000 * MIB)],
        memory_source="CUDA allocator",
    )
    (finding,) = retained_graph(run).findings
    assert f"would last until step {format_about(199 + 16_000 - 299)}" in finding.message
    assert finding.severity == "medium"


def test_a_run_that_ran_out_says_so(tmp_path: Path) -> None:
    run = write_run(
        tmp_path, steps=leaking_steps(), sources={"train.py": TRAIN}, censuses=[census()], ended="out_of_memory"
    )
    (finding,) = retained_graph(run).findings
    assert "ended this run at step 59" in finding.message
    assert finding.severity == "high"


def test_blames_a_running_total_on_an_attribute(tmp_path: Path) -> None:
    source = """\
class Trainer:
    def reset(self):
        self.total = 0.0

    def step(self, loss):
        loss.backward()
        self.total += loss
"""
    finding = finding_of(
        tmp_path, source, path="Trainer.total", scope="attribute", owner="Trainer", name="total", type="Tensor"
    )
    assert str(finding.blame) == "train.py:7"
    assert finding.fix.applicability == "safe"
    assert "self.total += loss.detach()" in str(finding.fix.changes)


def test_does_not_blame_a_line_that_keeps_a_number(tmp_path: Path) -> None:
    source = TRAIN.replace("optimizer.step()\n", "optimizer.step()\n        history.append(loss.item())\n", 1)
    assert str(finding_of(tmp_path, source).blame) == "train.py:9"


def test_another_reader_of_the_graphs_makes_the_fix_a_review(tmp_path: Path) -> None:
    finding = finding_of(tmp_path, TRAIN + "    torch.stack(history).sum().backward()\n")
    assert finding.fix.applicability == "review"
    assert "train.py:10" in finding.fix.summary


def test_names_the_other_candidates_where_it_is_not_sure(tmp_path: Path) -> None:
    source = TRAIN.replace("optimizer.step()\n", "optimizer.step()\n        history.append(y)\n", 1)
    finding = finding_of(tmp_path, source)
    assert "train.py:9" in str(finding.evidence)
    assert "less surely" in str(finding.evidence)


def test_two_separate_holders_are_two_findings_that_share_the_slope(tmp_path: Path) -> None:
    source = TRAIN.replace("history.append(loss)\n", "history.append(loss)\n        outputs.append(x)\n")
    both = census(graph_bytes_after=12 * MIB).holders
    other = census(
        path="train.outputs", name="outputs", graph_bytes_after=12 * MIB, graph_nodes_before=0, graph_nodes_after=0
    )
    counted = HolderCensus(step_before=10, step_after=14, holders=[*both, *other.holders])
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": source}, censuses=[counted])
    findings = (*retained_graph(run).findings, *growing_tensors(run).findings)
    assert [str(finding.blame) for finding in findings] == ["train.py:8", "train.py:9"]
    assert sum(finding.gain.peak_bytes or 0 for finding in findings) == pytest.approx(59 * MIB, rel=0.01)


def test_a_slow_growth_is_told_where_graphs_are_kept(tmp_path: Path) -> None:
    steps = leaking_steps(bytes_per_step=3000)
    graphs = {"graph_bytes_before": 10_000, "graph_bytes_after": 14_000, "graph_nodes_before": 20}
    kept = census(**graphs, graph_nodes_after=28)
    run = write_run(tmp_path / "graphs", steps=steps, sources={"train.py": TRAIN}, censuses=[kept])
    (finding,) = retained_graph(run).findings
    assert str(finding.blame) == "train.py:8"


def test_the_only_variable_that_grew_is_blamed_for_its_part_of_the_growth(tmp_path: Path) -> None:
    finding = finding_of(tmp_path, graph_bytes_before=0, graph_bytes_after=MIB // 2)
    assert str(finding.blame) == "train.py:8"
    assert finding.gain.peak_bytes is not None
    assert finding.gain.peak_bytes < 10 * MIB


def test_steady_memory_is_silent(tmp_path: Path) -> None:
    run = write_run(tmp_path, steps=leaking_steps(bytes_per_step=0), sources={"train.py": TRAIN}, censuses=[census()])
    assert retained_graph(run).findings == ()


def test_tensors_without_graphs_are_not_its_business(tmp_path: Path) -> None:
    plain = census(graph_nodes_before=0, graph_nodes_after=0, graph_bytes_before=0, graph_bytes_after=0,
                   tensor_bytes_after=40 + 4 * MIB)  # fmt: skip
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": TRAIN}, censuses=[plain])
    assert retained_graph(run).findings == ()


def test_a_short_run_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(ThinEvidence, match="10 steps"):
        retained_graph(write_run(tmp_path, steps=leaking_steps(10), censuses=[census()]))
