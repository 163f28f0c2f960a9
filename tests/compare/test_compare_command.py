"""`efprof compare` from the command line to its exit code."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from efprof.artifacts.run_file import Git
from efprof.cli import main
from efprof.units import MIB
from tests.compare.sides.test_trees import git
from tests.support.builders import make_steps, write_run

SOURCES = {"train.py": "for batch in loader:\n    loss.backward()\n"}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a run of branch main."""
    monkeypatch.setenv("EFPROF_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    add_run(tmp_path / "runs", "main")
    return tmp_path / "runs"


def add_run(store: Path, branch: str, *, peak_mib: int = 100, forward_ms: float = 4.0, **run_fields: Any) -> None:
    """A run of 40 steps on a branch."""
    peaks = tuple(size * MIB for size in (10, peak_mib, peak_mib, 50, 10))
    write_run(
        store / f"20260101T120000Z-{branch}",
        steps=make_steps(40, forward_ms=forward_ms, allocated_bytes=lambda _: peaks),
        sources=SOURCES,
        run_id=f"20260101T120000Z-{branch}",
        git=Git(root="/home/user/project", branch=branch, commit="3f2c1ab0"),
        **run_fields,
    )


def efprof_compare(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """The exit code."""
    monkeypatch.setattr(sys, "argv", ["efprof", "compare", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code


def test_which_runs_they_are_is_said_with_their_age_and_whether_the_branch_has_moved_on(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_run(store, "feature")
    folder = store.parent
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "later")
    assert efprof_compare(monkeypatch, "main", "feature") == 0
    base, head = [line for line in capsys.readouterr().err.splitlines() if line.startswith("efprof: ")]
    assert base.startswith("efprof: 'main' is 20260101T120000Z-main, of 3f2c1ab, ")
    assert base.endswith(f" old; the branch is at {git(folder, 'rev-parse', 'HEAD')[:7]} by now")
    assert head.endswith(" old")


def test_strict_takes_unclear_for_an_answer_of_its_own(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_run(store, "feature", forward_ms=5.0)
    assert efprof_compare(monkeypatch, "main", "feature", "--strict") == 0
    assert efprof_compare(monkeypatch, "main", "feature", "--strict", "--budget", "step_ms=5") == 3


def test_a_larger_peak_fails_with_one_and_a_budget_allows_it(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_run(store, "feature", peak_mib=120)
    assert efprof_compare(monkeypatch, "main", "feature") == 1
    assert efprof_compare(monkeypatch, "main", "feature", "--budget", "peak_allocated_bytes=25") == 0


def test_a_gate_that_is_written_down_holds_and_an_option_overrides_it(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_run(store, "feature", peak_mib=120)
    settings = store.parent / "efprof.toml"
    settings.write_text("[gate]\nbudget = {peak_allocated_bytes = 25}\n")
    assert efprof_compare(monkeypatch, "main", "feature") == 0
    assert efprof_compare(monkeypatch, "main", "feature", "--budget", "peak_allocated_bytes=10") == 1
    settings.write_text("[gate]\nstrict = true\nbudget = {peak_allocated_bytes = 25, step_ms = 5}\n")
    assert efprof_compare(monkeypatch, "main", "feature") == 3


def test_other_versions_are_not_comparable_unless_forced(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_run(store, "feature", versions={"python": "3.11.9", "torch": "2.6.0"})
    assert efprof_compare(monkeypatch, "main", "feature") == 4
    assert "torch: 2.13.0 in base, 2.6.0 in head" in capsys.readouterr().err
    assert efprof_compare(monkeypatch, "main", "feature", "--force", "--json") == 0
    assert json.loads(capsys.readouterr().out)["differences"] == ["torch: 2.13.0 in base, 2.6.0 in head"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("main", "featrue"), "did you mean 'feature'"),
        (("main", "main"), "BASE and HEAD are the same run, 20260101T120000Z-main: record"),
        (("main", "feature", "--budget", "step=5"), "did you mean 'step_ms'"),
        (("main", "feature", "--budget", "step_ms=-1"), "'step_ms=-1' is not METRIC=PERCENT"),
    ],
)
def test_wrong_usage_is_named_and_exits_with_two(
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    add_run(store, "feature")
    assert efprof_compare(monkeypatch, *arguments) == 2
    assert message in capsys.readouterr().err


def test_two_runs_alike_are_fine_and_json_is_printed_alone(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_run(store, "feature")
    assert efprof_compare(monkeypatch, "main", "feature", "--json") == 0
    comparison = json.loads(capsys.readouterr().out)
    assert comparison["metrics"][0]["name"] == "step_ms"
    assert comparison["base"]["branch"] == "main"


def test_the_name_after_out_decides_the_form_and_a_page_without_one_goes_to_the_reports(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_run(store, "feature")
    efprof_compare(monkeypatch, "main", "feature", "--out", "change.md")
    efprof_compare(monkeypatch, "main", "feature", "--out", "change.html")
    assert Path("change.md").read_text().startswith("## efprof")
    assert Path("change.html").read_text().startswith("<!doctype html>")
    efprof_compare(monkeypatch, "main", "feature", "--format", "html")
    assert Path("reports/20260101T120000Z-main-to-20260101T120000Z-feature.html").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--head-python", sys.executable), "--head-python is for a comparison that runs a command"),
        (("--steps", "3"), "--steps is for a comparison that runs a command"),
        (("--base-python", sys.executable, "--", "torchrun", "x.py"), "'torchrun' is no python: --base-python"),
    ],
)
def test_options_of_a_command_ask_for_one(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str
) -> None:
    assert efprof_compare(monkeypatch, "main", "feature", *words) == 2
    assert why in capsys.readouterr().err
