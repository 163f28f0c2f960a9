"""`efprof fix`: what it prints for a finding of a recorded run, and says where there is nothing to print."""

import shutil
import subprocess
from pathlib import Path

import pytest

from efprof.commands.fix import fix
from efprof.model import EfprofError
from tests.commands.test_traces import run
from tests.compare.sides.test_trees import git

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests" / "runs"
PROGRAM = Path("tests/casebook/needless_retain_graph.py")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the program that was recorded, elsewhere."""
    (tmp_path / PROGRAM).parent.mkdir(parents=True)
    shutil.copy(ROOT / PROGRAM, tmp_path / PROGRAM)
    git(tmp_path, "init", "-q")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_diff_of_a_finding_is_applied_by_git_and_nothing_is_written_before(checkout: Path) -> None:
    before = (checkout / PROGRAM).read_text()
    diff = run(fix, RUNS / "needless_retain_graph-sick", "1").output
    assert (checkout / PROGRAM).read_text() == before
    subprocess.run(["git", "apply"], cwd=checkout, input=diff, text=True, check=True)
    after = (checkout / PROGRAM).read_text()
    ((gone, new),) = [pair for pair in zip(before.splitlines(), after.splitlines(), strict=True) if pair[0] != pair[1]]
    assert "retain_graph=True" in gone
    assert "retain_graph" not in new


def test_a_finding_without_an_edit_and_a_line_that_is_another_by_now_are_sentences(checkout: Path) -> None:
    with pytest.raises(EfprofError, match=r"finding 1 \(input_stall\) has no edit of a file: "):
        run(fix, RUNS / "input_stall_worker-sick", "1")
    (checkout / PROGRAM).write_text("\n" + (checkout / PROGRAM).read_text())
    with pytest.raises(EfprofError, match="has changed since; record again"):
        run(fix, RUNS / "needless_retain_graph-sick", "1")
    with pytest.raises(EfprofError, match="there is no finding '9' in this report"):
        run(fix, RUNS / "needless_retain_graph-sick", "9")
