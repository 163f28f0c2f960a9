"""recompilation: fires on the line that runs a function compiled again and again; silent where few times are usual."""

from pathlib import Path

import pytest

from efprof.artifacts.events import Compilation
from efprof.audits.recompilation import recompilation
from efprof.commands.report import analyse
from efprof.facts.run.run import Run
from efprof.model import Finding, NotRecorded
from efprof.report.verdict import rank_findings
from tests.support.builders import START_NS, make_steps, write_run

TRAIN = """\
def train(model, k):
    for x in loader:
        loss = model(x, k)
        loss.backward()
"""
SITE = "train.py:3:train"


def sizes(number: int) -> str:
    return f"{number}/1: tensor 'L['x']' size mismatch at index 1. expected {number}, actual {number + 1}"


def values(number: int) -> str:
    return f"0/{number}: L['k'] == {number}.0               # return x * k  # train.py:9 in forward\nUser stack trace:"


def rates(number: int) -> str:
    return f"2/{number}: self.param_groups[0]['lr'] == 0.00{number}  # (_dynamo/output_graph.py:3375 in step)"


def others(number: int) -> str:
    return f"0/{number}: GLOBAL_STATE changed: grad_mode"


def compiled(reason: str | None, seconds: float = 0.05, site: str | None = SITE) -> Compilation:
    return Compilation(at_ns=START_NS, step=1, function="forward", site=site, seconds=seconds, reason=reason)


def run_of(folder: Path, *events: Compilation) -> Run:
    return write_run(folder / "run", steps=make_steps(40), events=events, sources={"train.py": TRAIN})


def finding_of(run: Run) -> Finding:
    (finding,) = recompilation(run).findings
    return finding


def test_it_blames_the_line_that_runs_the_function_counts_and_leads(tmp_path: Path) -> None:
    finding = finding_of(run_of(tmp_path, compiled(None), *(compiled(sizes(number)) for number in range(4))))
    assert (str(finding.blame), finding.severity) == ("train.py:3", "high")
    assert finding.message == "4 recompilations of `forward` took 200 ms at train.py:3, 32 % of all steps' time."
    assert finding.why == "Dimension 1 of `x` changes from call to call, and torch compiles again for each new value."
    assert "`torch._dynamo.mark_dynamic(x, 1)`" in finding.fix.summary
    assert rank_findings(analyse(tmp_path / "run"))[0].audit_id == "recompilation"


@pytest.mark.parametrize(
    ("reason_of", "advice"),
    [
        (values, "Make `k` a tensor"),
        (rates, "`lr=torch.tensor(...)`"),
        (others, "`GLOBAL_STATE changed: grad_mode`; or compile with"),
    ],
)
def test_the_fix_goes_by_the_guard_that_failed_last(reason_of, advice, tmp_path):
    reasons = [sizes(7), *map(reason_of, range(3))]
    assert advice in finding_of(run_of(tmp_path, *map(compiled, reasons))).fix.summary


def test_a_long_run_does_not_mind(tmp_path: Path) -> None:
    events = [compiled(values(number), seconds=0.001) for number in range(3)]
    assert finding_of(run_of(tmp_path, *events)).severity == "low"


@pytest.mark.parametrize(
    "events",
    [
        [compiled(None)] * 5,
        [compiled(None), compiled(sizes(1)), compiled(others(2))],
        [compiled(sizes(number), site=f"train.py:{number}:train") for number in range(1, 5)],
    ],
    ids=["five functions", "another size and an evaluation", "four lines"],
)
def test_it_is_silent_where_few_times_are_usual(events: list[Compilation], tmp_path: Path) -> None:
    assert recompilation(run_of(tmp_path, *events)).findings == ()


def test_a_run_that_compiles_nothing_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match=r"torch\.compile"):
        recompilation(run_of(tmp_path))
