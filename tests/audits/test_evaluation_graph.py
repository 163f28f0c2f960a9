"""evaluation_graph: fires where an evaluation builds graphs or keeps them, is silent where none is built."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from efprof.artifacts.readings import EVALUATIONS_FILE, EvaluationMemory, EvaluationRecord
from efprof.audits.evaluation_graph import evaluation_graph
from efprof.commands.report import analyse
from efprof.facts.run.run import Run
from efprof.model import CodeEdit, Finding, ThinEvidence
from efprof.report.text_forms import render_text
from efprof.units import MIB
from tests.support.builders import START_NS, make_steps, write_run

SOURCE = """\
import torch

def score(model, batch):
    return model(batch).square().mean()

def evaluate(model, batches):
    losses = []
    for batch in batches:
        losses.append(score(model, batch))
    return sum(losses)
"""
IN_SCORE, IN_LOOP = "train.py:4:score", "train.py:9:evaluate"
LOOP = "    for batch in batches:\n        losses.append(score(model, batch))"
TRAINED = (100 * MIB, 140 * MIB, 140 * MIB, 120 * MIB, 100 * MIB)


def evaluation(**fields: Any) -> EvaluationRecord:
    """40 forward passes with graphs of 4 MiB, all of which are kept."""
    defaults: dict[str, Any] = {
        "after_step": 9,
        "started_ns": START_NS,
        "total_us": 200_000.0,
        "num_batches": 40,
        "site": IN_SCORE,
        "memory": [EvaluationMemory(0, 100 * MIB), EvaluationMemory(40, 270 * MIB)],
        "peak_bytes": 270 * MIB,
        "is_peak_exact": False,
        "callers": [IN_SCORE, IN_LOOP, "train.py:20:<module>"],
        "graph_bytes": 4 * MIB,
        "num_alive": 40,
    }
    return EvaluationRecord(**(defaults | fields))


def run_of(folder: Path, *records: EvaluationRecord, source: str = SOURCE) -> Run:
    steps = make_steps(20, allocated_bytes=TRAINED)
    run = write_run(folder, steps=steps, sources={"train.py": source})
    lines = [msgspec.json.encode(one) + b"\n" for one in records]
    (run.rank_folder / EVALUATIONS_FILE).write_bytes(b"".join(lines))
    return run


def only(run: Run) -> Finding:
    (finding,) = evaluation_graph(run).findings
    return finding


def test_blames_the_line_that_the_loop_repeats_and_puts_the_loop_under_no_grad(tmp_path: Path) -> None:
    finding = only(run_of(tmp_path, evaluation(), evaluation(after_step=19)))
    assert str(finding.blame) == "train.py:9"
    assert finding.message == "160 MiB of graphs, 40 at a time, are kept by the evaluation at train.py:9."
    new = "    with torch.no_grad():\n        for batch in batches:\n            losses.append(score(model, batch))"
    assert finding.fix.changes == (CodeEdit(file="train.py", line=8, old=LOOP, new=new),)


def test_the_gain_is_what_the_peak_is_higher_by_than_in_training(tmp_path: Path) -> None:
    gain = only(run_of(tmp_path / "kept", evaluation())).gain
    assert (gain.peak_bytes, gain.of_bytes) == (130 * MIB, 270 * MIB)
    in_turn = evaluation(num_alive=2, peak_bytes=120 * MIB)
    finding = only(run_of(tmp_path / "in turn", in_turn))
    assert finding.gain.peak_bytes is None
    assert finding.message.startswith("4.00 MiB of graph is built by each of 40 forward passes")


def test_it_leads_the_report_with_the_peak_of_the_evaluation(tmp_path: Path) -> None:
    text = render_text(analyse(run_of(tmp_path, evaluation()).folder))
    verdict, why, following = text.splitlines()[1:4]
    assert "kept by the evaluation at train.py:9" in verdict
    assert "Gradients are on" in why
    assert "`with torch.no_grad():`" in following
    assert "peak memory 270 MiB in an evaluation (140 MiB in a step)" in text
    assert "HIGH" in text


def test_a_loop_that_trains_as_well_is_left_to_a_person(tmp_path: Path) -> None:
    source = SOURCE.replace("    return sum", "        losses[-1].backward()\n    return sum")
    fix = only(run_of(tmp_path, evaluation(), source=source)).fix
    assert "set_grad_enabled" in fix.summary
    assert fix.changes == ()


def test_evaluations_without_a_graph_or_with_small_ones_are_silent(tmp_path: Path) -> None:
    examination = evaluation_graph(run_of(tmp_path / "none", evaluation(graph_bytes=None, num_alive=0)))
    assert examination.findings == ()
    assert examination.looked_at == "1 evaluation, 40 forward passes"
    small = evaluation(graph_bytes=1000, num_alive=40)
    assert evaluation_graph(run_of(tmp_path / "small", small)).findings == ()


def test_it_does_not_apply_where_none_was_seen_and_a_rollout_is_none(tmp_path: Path) -> None:
    with pytest.raises(ThinEvidence):
        evaluation_graph(write_run(tmp_path / "old", steps=make_steps(20)))
    with pytest.raises(ThinEvidence):
        evaluation_graph(run_of(tmp_path / "acting", evaluation(is_rollout=True)))
