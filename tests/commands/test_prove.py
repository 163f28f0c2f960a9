"""`efprof prove`: what is tried, what stays with the run, and the exit code."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from efprof.artifacts.proofs import keep_proofs, read_proofs
from efprof.cli import main
from efprof.commands.prove import prove
from efprof.commands.report import analyse
from efprof.model import HIDDEN, EfprofError, Proof
from efprof.report.json_form import render_json
from efprof.report.verdict import rank_findings
from tests.commands.test_traces import run
from tests.compare.sides.test_trees import git, state_of

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests" / "runs"
PROGRAM = ROOT / "tests" / "casebook" / "needless_retain_graph.py"


def test_a_proof_stays_with_the_run_and_every_report_tells_the_newest(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(RUNS / "needless_retain_graph-sick", folder)
    (item,) = rank_findings(analyse(folder))
    old = Proof(key=item.key, audit_id=item.audit_id, headline="", verdict="unclear", reasons=("no time was left",))
    new = Proof(
        key=item.key, audit_id=item.audit_id, headline="", verdict="proved", unit="bytes", predicted=5e7, measured=4e7
    )
    other = Proof(key="another", audit_id="another", headline="", verdict="proved")
    keep_proofs(folder, [old, other])
    keep_proofs(folder, [new])
    assert read_proofs(folder) == (other, new)
    keep_proofs(folder, [replace(old, head=".")])
    (item,) = rank_findings(analyse(folder))
    assert "unclear by '.'" in item.gain
    keep_proofs(folder, [new])
    report = analyse(folder)
    (item,) = rank_findings(report)
    assert item.gain.endswith("; proved: saves 38.1 MiB, 47.7 MiB predicted")
    findings = [one for audit in json.loads(render_json(report))["audits"] for one in audit["findings"]]
    assert [one["proof"]["verdict"] for one in findings] == ["proved"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("1",), "finding 1 (input_stall) has no edit: "),
        (("--all",), "there is nothing to prove"),
        (("--head", "."), "--head needs the one FINDING that it is for"),
    ],
)
def test_nothing_to_prove_is_an_exit_code_of_its_own(
    words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["efprof", "prove", str(RUNS / "input_stall_worker-sick"), *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 4
    assert why in capsys.readouterr().err


def test_a_command_with_a_secret_is_not_run_without_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(RUNS / "needless_retain_graph-sick", folder)
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"command": ["python", "train.py", f"--token={HIDDEN}"]}))
    with pytest.raises(EfprofError, match="holds a secret that was not recorded"):
        run(prove, folder, "1")


@pytest.mark.long
def test_an_edit_and_a_fix_by_hand_are_proved_and_a_change_that_mends_nothing_is_not(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    program = tmp_path / "train.py"
    shutil.copy(PROGRAM, program)
    (tmp_path / ".gitignore").write_text("reports\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "sick")

    def efprof(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "efprof", *words],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    efprof("record", "--", sys.executable, "train.py")
    before = state_of(tmp_path)
    code, said = efprof("prove", "latest")
    assert (code, said.startswith("1. proved: saves 4")) == (0, True), said
    assert state_of(tmp_path) == before
    program.write_text(program.read_text().replace("range(32)", "range(33)"))
    code, said = efprof("prove", "latest", "1", "--head", ".")
    assert (code, "the fault is still there" in said) == (1, True), said
    program.write_text(program.read_text().replace("retain_graph=True", ""))
    code, said = efprof("prove", "latest", "1", "--head", ".")
    assert (code, "1. proved" in said) == (0, True), said
