"""What is told of evaluations: their time, their memory, and what their batches leave behind."""

from pathlib import Path
from typing import Any

import msgspec

from efprof.artifacts.readings import EVALUATIONS_FILE, EvaluationMemory, EvaluationRecord
from efprof.commands.report import analyse, render
from efprof.facts.overview.measurements import evaluations_of, notes_on
from efprof.facts.run.run import Run
from efprof.units import MIB
from tests.support.builders import START_NS, make_steps, write_run

TRAIN = "def evaluate():\n    for batch in loader:\n        outputs.append(model(batch))\n"
TRAINED = (100 * MIB, 140 * MIB, 140 * MIB, 120 * MIB, 100 * MIB)


def evaluation(*, kept: float = 0.0, **fields: Any) -> EvaluationRecord:
    """40 batches in 200 ms, each of which leaves so many MiB behind, on a heap of 100 MiB."""
    memory = [EvaluationMemory(n, round((100 + kept * n) * MIB)) for n in range(0, 41, 4)]
    defaults: dict[str, Any] = {
        "after_step": 9,
        "started_ns": START_NS + 10_000_000_000,
        "total_us": 200_000.0,
        "num_batches": 40,
        "site": "train.py:2:evaluate",
        "memory": memory,
        "peak_bytes": max(each.allocated_bytes for each in memory),
        "is_peak_exact": False,
    }
    return EvaluationRecord(**{**defaults, **fields})


def run_of(folder: Path, *records: EvaluationRecord) -> Run:
    run = write_run(folder, steps=make_steps(20, allocated_bytes=TRAINED), sources={"train.py": TRAIN})
    (run.rank_folder / EVALUATIONS_FILE).write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in records))
    return run


def notes_of(folder: Path, *records: EvaluationRecord) -> str:
    return "\n".join(notes_on(evaluations_of(run_of(folder, *records))))


def test_what_each_batch_leaves_behind_is_told(tmp_path: Path) -> None:
    notes = notes_of(tmp_path, evaluation(kept=3))
    assert "What the loop at train.py:2 stores adds 3.00 MiB per batch, 120 MiB by the end of its 40 batches" in notes


def test_what_rises_once_or_is_small_is_not_told(tmp_path: Path) -> None:
    assert notes_of(tmp_path, evaluation()) == ""
    sizes = [100, 100, 100, 100, 130, 130, 130, 130, 130]
    memory = [EvaluationMemory(n, size * MIB) for n, size in enumerate(sizes)]
    assert "stores" not in notes_of(tmp_path / "second", evaluation(memory=memory, num_batches=8))
    assert "stores" not in notes_of(tmp_path / "third", evaluation(kept=0.05))


def test_what_fills_up_in_the_first_batches_is_not_told_and_what_goes_on_to_the_end_is(tmp_path: Path) -> None:
    first = [EvaluationMemory(n, (100 + n) * MIB) for n in range(33)]
    full = evaluation(memory=[*first, EvaluationMemory(1000, 133 * MIB)], num_batches=1000)
    assert notes_of(tmp_path, full) == ""
    stored = evaluation(memory=[*first, EvaluationMemory(1000, 1100 * MIB)], num_batches=1000)
    assert "adds 1.00 MiB per batch, 1000 MiB by the end of its 1,000 batches" in notes_of(tmp_path / "second", stored)


def test_a_run_without_evaluations_has_no_section(tmp_path: Path) -> None:
    run = write_run(tmp_path, steps=make_steps(5))
    assert evaluations_of(run) == ()
    report = analyse(run.folder)
    assert 'id="evaluation"' not in render(report, "html")
    assert "in an evaluation" not in render(report, "text")


def test_every_form_of_the_report_has_them(tmp_path: Path) -> None:
    report = analyse(run_of(tmp_path, evaluation(kept=3), evaluation(kept=2, after_step=19)).folder)
    assert "peak memory 220 MiB in an evaluation (140 MiB in a step). Memory was read from" in render(report, "text")
    found, _ = msgspec.json.decode(render(report, "json"))["measurements"]["evaluations"]
    assert found["kept_bytes_per_batch"] == 3 * MIB
    page = render(report, "html")
    assert '<h2 id="evaluation-title">Evaluation</h2>' in page
