"""`efprof report`, from the command line to the file."""

import io
import json
from pathlib import Path

import click.testing
import pytest

from efprof.artifacts import runs
from efprof.commands import report as command
from efprof.model import EfprofError
from tests.report.report_sample import make_report, make_run

CLEARED = "\r\x1b[K"


@pytest.fixture(autouse=True)
def sample(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A report without a run folder: what this tests begins after the analysis."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "find_run", lambda run: Path("run"))
    monkeypatch.setattr(command, "analyse", lambda path, **options: make_report())


def run_command(*arguments: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(command.report, arguments, standalone_mode=False)


def test_writes_the_page_and_says_where() -> None:
    lines = run_command().stdout.splitlines()
    assert lines[-1] == "reports/20260301T101500-train-a1b2c3.html"
    assert Path(lines[-1]).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert lines[1].startswith("Verdict  Memory grows")
    assert len(lines) <= 21


def test_json_goes_to_the_terminal() -> None:
    assert json.loads(run_command("--json").stdout)["schema_version"] == 1
    assert not Path("reports").exists()


def test_the_brief_form_goes_to_the_terminal_as_text_or_json_and_writes_no_page() -> None:
    text = run_command("--brief").stdout
    assert text.startswith("Verdict  Memory grows 61.0 MiB per step (train.py:88). ")
    assert text.endswith("$ efprof compare 20260301T101500-train-a1b2c3 latest\n")
    assert text == run_command("--brief", "--format", "text").stdout
    form = json.loads(run_command("--brief", "--json").stdout)
    assert form["findings"][0]["line"] == "train.py:88"
    assert form == json.loads(run_command("--brief", "--format", "json").stdout)
    assert not Path("reports").exists()


def test_the_brief_form_can_be_written_and_has_no_page() -> None:
    assert run_command("--brief", "--out", "brief.json").stdout == "brief.json\n"
    assert json.loads(Path("brief.json").read_text(encoding="utf-8"))["run"] == "20260301T101500-train-a1b2c3"
    for options in (("--format", "html"), ("--out", "page.html")):
        error = run_command("--brief", *options).exception
        assert isinstance(error, EfprofError)
        assert str(error) == "--brief makes text or, with --json, JSON, and no html."
    assert [path.name for path in Path().iterdir()] == ["brief.json"]


def test_the_name_of_the_file_says_the_form_unless_a_format_is_given() -> None:
    assert run_command("--out", "summary.md").stdout == "summary.md\n"
    assert Path("summary.md").read_text(encoding="utf-8").startswith("# efprof")
    assert run_command("--format", "json", "--out", "report.txt").exit_code == 0
    assert Path("report.txt").read_text(encoding="utf-8").startswith("{")


def test_a_name_that_says_no_form_and_json_with_another_are_refused_and_nothing_written() -> None:
    error = run_command("--out", "page.pdf").exception
    assert isinstance(error, EfprofError)
    assert "page.pdf ends in none of .txt, .json, .md, .html" in str(error)
    assert not Path("page.pdf").exists()
    assert isinstance(run_command("--json", "--format", "html").exception, EfprofError)


def test_an_unwritable_place_is_one_sentence() -> None:
    Path("file").write_text("")
    error = run_command("--out", "file/page.html").exception
    assert isinstance(error, EfprofError)
    assert str(error) == "file/page.html cannot be written (File exists): give another place after --out."
    assert error.exit_code == 2


def test_a_failed_write_leaves_the_old_file_and_the_folder_of_out_is_made(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert isinstance(run_command("--out", "folder").exception, EfprofError)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert run_command("--format", "json", "--out", "new/folder/report.json").stdout == "new/folder/report.json\n"
    assert Path("new/folder/report.json").read_text(encoding="utf-8").startswith("{")


def test_a_run_id_cannot_lead_out_of_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "analyse", lambda path, **options: make_report(run=make_run(run_id="../../etc/x")))
    assert run_command().stdout.splitlines()[-1] == "reports/_.._etc_x.html"


def test_a_gpu_is_estimated_where_somebody_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        command, "analyse", lambda path, *, has_gpu_estimate, **_: asked.append(has_gpu_estimate) or make_report()
    )
    run_command("--json")
    run_command("--json", "--gpu-estimate")
    assert asked == [False, True]


@pytest.mark.parametrize(
    ("waited_s", "is_terminal", "shown"), [(2.0, True, "audit 1 of 2 ..."), (0.5, True, ""), (2.0, False, "")]
)
def test_who_waits_at_a_terminal_is_told_what_is_done(
    monkeypatch: pytest.MonkeyPatch, waited_s: float, is_terminal: bool, shown: str
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stderr", stream)
    clock = iter([0.0, waited_s])
    monkeypatch.setattr("time.monotonic", lambda: next(clock, waited_s))
    with command.progress() as say:
        say("audit 1 of 2")
        assert stream.getvalue().removeprefix(CLEARED) == shown
    assert stream.getvalue() == "" or stream.getvalue().endswith(CLEARED)
