"""nonfinite_loss after a hunt: the line, the cause and the advice are those of what the second run has shown."""

import shutil
from pathlib import Path

import pytest

from efprof.artifacts.hunts import Hunt, Operand, Origin, keep_hunt
from efprof.audits.nonfinite_loss import nonfinite_loss
from efprof.facts.run.run import open_run
from efprof.model import CodeEdit, Finding, Narrative, Table

SICK = Path(__file__).parents[1] / "runs" / "nonfinite_loss-sick"
SITE = "tests/casebook/nonfinite_loss.py:25:Mixture.forward"


def operand(**fields: object) -> Operand:
    usual = {"shape": [4], "dtype": "float32", "num_elements": 4, "low": 0.5, "high": 2.0}
    return Operand(**{**usual, **fields})  # type: ignore[arg-type]


def origin(operation: str = "log", kind: str = "inf", **fields: object) -> Origin:
    usual = {"site": SITE, "number": 1, "pass_number": 40, "result": operand(num_inf=1), "operands": [operand()]}
    return Origin(kind=kind, operation=operation, **{**usual, **fields})  # type: ignore[arg-type]


def hunted(tmp_path: Path, found: Origin | None, **fields: object) -> Finding:
    folder = tmp_path / "run"
    shutil.copytree(SICK, folder)
    verdict = "born" if found else "not reproduced"
    usual = {"verdict": verdict, "why": "", "step": 40, "seconds": 5.0, "num_equal": 40, "origin": found}
    keep_hunt(folder, Hunt(**{**usual, **fields}))  # type: ignore[arg-type]
    (finding,) = nonfinite_loss(open_run(folder)).findings
    return finding


def test_what_it_was_given_is_told_and_its_operand_bounded(tmp_path: Path) -> None:
    finding = hunted(tmp_path, origin(operands=[operand(num_zero=1, low=0.0)]))
    assert str(finding.blame) == "tests/casebook/nonfinite_loss.py:25"
    assert finding.why == "`log` makes Inf: it is given float32 [4], 0 in 1 of 4 places."
    (edit,) = finding.fix.changes
    assert isinstance(edit, CodeEdit)
    assert "density.clamp_min(1e-06)" in edit.new
    (table,) = [one for one in finding.evidence if isinstance(one, Table)]
    assert [row[0] for row in table.rows] == ["given", "made"]


@pytest.mark.parametrize(
    ("found", "why", "advice"),
    [
        (origin("mm", result=operand(dtype="float16", num_inf=1), operands=[operand(high=900.0, dtype="float16")]),
         "`mm` makes Inf: it is given float16 [4], ", "float16 ends at 65,504"),
        (origin("addcdiv_", "nan", optimizer="Adam", eps=1e-8, result=operand(dtype="float16", num_nan=1)),
         "The update of `Adam` makes NaN", "Set `Adam(..., eps=0.0001)`"),
        (origin("mul", "literal", scalars=["nan"]),
         "`mul` is given the number nan", "Find where that number comes from"),
        (origin("addmm", "given", operands=[operand(num_nan=3)]),
         "It is given float32 [4], which is NaN in 3 of 4", "Look at the batch"),
        (origin("mul", operands=[operand(high=1e38, name="state", is_a="buffer", made_at="model.py:9:forward")]),
         "`mul` makes Inf: it is given `state`, 0.5 to 1e+38", "Bound `state` where it is written, at model.py:9"),
    ],
    ids=["half precision", "an update", "a number", "data", "a buffer that grew"],
)  # fmt: skip
def test_each_cause_has_its_words(found: Origin, why: str, advice: str, tmp_path: Path) -> None:
    finding = hunted(tmp_path, found)
    assert finding.why.startswith(why)
    assert finding.fix.summary.startswith(advice)


def test_gradients_that_exploded_are_the_fault_and_which_did_so_first_is_told(tmp_path: Path) -> None:
    norms = {"head.weight": [1.0] * 20 + [2.0, 5.0, 300.0], "rnn.weight": [0.1] * 20 + [0.5, 8.0, 90.0]}
    found = origin("mm", operands=[operand(high=1e30)])
    finding = hunted(tmp_path, found, norms=norms)
    assert finding.headline == "Gradients explode"
    assert finding.why == "Gradients exploded, that of `rnn.weight` first, to 900 times its usual norm."
    tables = {one.title: one for one in finding.evidence if isinstance(one, Table)}
    rows = tables["Norms of the gradients in the passes before"].rows
    assert [(row[0], row[-1]) for row in rows] == [("rnn.weight", "900"), ("head.weight", "300")]


def test_a_second_run_that_went_otherwise_leaves_the_finding_as_it_was_and_says_why(tmp_path: Path) -> None:
    finding = hunted(tmp_path, None, why="the loss of step 3 is 1.0, and was 2.0")
    assert str(finding.blame) == "tests/casebook/nonfinite_loss.py:25"
    (narrative,) = [one for one in finding.evidence if isinstance(one, Narrative)]
    assert narrative.paragraphs[-1] == "A second run did not show it: the loss of step 3 is 1.0, and was 2.0."
