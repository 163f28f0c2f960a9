"""Traces of torch's profiler from anywhere on the command line: reported on and compared."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from efprof.commands.compare import compare
from efprof.commands.report import report
from efprof.model import EfprofError, UnreadableInput
from tests.facts.time.traces import REAL, event, slower, step, write
from tests.support.builders import make_steps, write_run


def run(command: object, *words: str | Path) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)  # type: ignore[arg-type]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "resnet.pt.trace.json.gz", *slower(100, *step(0, 0), *step(1000, 1)))


def test_a_trace_alone_is_reported_on(trace: Path, tmp_path: Path) -> None:
    text = run(report, trace, "--format", "text").output
    assert "resnet   1 x Pretended GPU   a profiler trace, without its run" in text
    assert "A step spends 30.0 ms inside the loader" in text
    assert "allocator what-if" not in text
    page = tmp_path / "page.html"
    run(report, trace, "--out", page)
    html = page.read_text()
    assert "Where the time goes" in html
    assert html.count('class="intervals"') == 3
    assert "train.py:10" in html


def test_what_a_trace_is_named_after_cannot_become_markup(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    path = write(tmp_path / "trace.json.gz", *step(), event(evil, 100, 500), event(f"nn.Module: {evil}", 610, 300))
    run(report, path, "--out", tmp_path / "page.html")
    assert evil not in (tmp_path / "page.html").read_text()


def test_the_ranks_of_one_training_are_given_together_or_as_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    paths = [write(folder / f"{rank}.json", *step(), rank=rank) for rank in (1, 0)]
    for words in (paths, [folder]):
        assert "2 ranks" in run(report, *words, "--format", "text").output


def test_a_broken_rank_is_one_sentence_in_a_report_of_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    write(folder / "0.json", *step(), rank=0)
    (folder / "1.json").write_text('{"traceEvents": [{"ph"')
    page = tmp_path / "page.html"
    run(report, folder, "--out", page)
    assert f"{folder / '1.json'} is not a whole profiler trace" in page.read_text()


def test_ranks_that_are_missing_are_named(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{rank}.json", *step(), rank=rank, world_size=5) for rank in (0, 1, 3)]
    missing = "Of 5 ranks 2 have no trace here that can be read: 2, 4."
    assert missing in run(report, *paths, "--format", "markdown").output
    paths += [write(tmp_path / f"{rank}.json", *step(), rank=rank, world_size=5) for rank in (2, 4)]
    assert "can be read" not in run(report, *paths, "--format", "markdown").output
    assert "can be read" not in run(report, paths[0], "--format", "markdown").output, "one rank alone was chosen"
    odd = [write(tmp_path / f"odd-{rank}.json", *step(), rank=rank, world_size=[5]) for rank in (0, 1)]
    assert "can be read" not in run(report, *odd, "--format", "markdown").output


def test_two_traces_of_one_rank_are_refused_by_name_or_reported_each(tmp_path: Path) -> None:
    first, second = (write(tmp_path / f"{name}.json.gz", *step(), rank=0, world_size=2) for name in ("a", "b"))
    told = f"{first} and {second} are both of rank 0, and no windows of one process: give one, or --each."
    for given in ((first, second), (tmp_path,)):
        with pytest.raises(EfprofError, match=re.escape(told)):
            run(report, *given, "--format", "text")
    output = run(report, tmp_path, "--each", "--format", "text").output
    assert [line.split()[1] for line in output.splitlines() if line.startswith("efprof ")] == ["a", "b"]
    with pytest.raises(EfprofError, match="leave one of them out"):
        run(report, tmp_path, "--each", "--out", tmp_path / "all.html")
    with pytest.raises(EfprofError, match="--each is for traces and snapshots"):
        run(report, "--each")


@pytest.mark.parametrize("rank", [0, None])
def test_windows_of_one_process_are_one_run_in_time_order(tmp_path: Path, rank: int | None) -> None:
    later = write(tmp_path / "a.json.gz", *slower(2, *step(5000, 7)), rank=rank)
    write(tmp_path / "b.json.gz", *step(0, 3), rank=rank)
    text = run(report, tmp_path, "--format", "markdown").output
    said = "2 windows of one rank: a step took 1.00 ms in the first and 2.00 ms in the last (2.00 times)"
    assert said in text
    assert "2 ranks" not in text
    for pid in (1, 2):  # of another process, or of the same steps
        other = [one | {"pid": pid} for one in step(5000, 7 if pid == 2 else 3)]
        write(later, *other, rank=rank)
        with pytest.raises((EfprofError, UnreadableInput), match=r"(both of rank 0|ends before).*give one, or --each"):
            run(report, tmp_path, "--format", "text")


def test_traces_that_name_no_rank_are_ranks_only_where_they_overlap_in_time(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.json.gz", *step()), write(tmp_path / "b.json.gz", *step(5000))
    with pytest.raises(UnreadableInput, match=r"ends before .* begins, so that they are no ranks of one training"):
        run(report, second, first, "--format", "text")
    third = write(tmp_path / "c.json.gz", *step(200))
    assert "2 ranks" in run(report, first, third, "--format", "text").output


def test_a_broken_trace_alone_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [{"ph"')
    with pytest.raises(UnreadableInput, match=f"{path} is not a whole profiler trace"):
        run(report, path, "--format", "text")


def test_a_trace_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match=r"empty\.json\.gz is a profiler trace of nothing"):
        run(report, write(tmp_path / "empty.json.gz"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", r"\(it is empty\)"),
        (
            '{"traceEvents": [{"ph": "X", "name": "f", "ts": 1, "dur": 5, "pid": 1, "tid": 1, "cat": "FEE"}]}',
            "another tool's",
        ),
        (
            '[{"ph": "X", "name": "RunTask", "ts": 1, "dur": 5, "pid": 1, "tid": 1, "cat": "devtools"}]',
            "another tool's",
        ),
        ('[{"ph": "b", "name": "x", "id": 1, "ts": 1, "pid": 1, "tid": 1, "cat": "a"}]', "a profiler trace of nothing"),
    ],
    ids=["nothing", "VizTracer", "DevTools", "async events"],
)
def test_what_is_no_trace_of_torchs_profiler_is_named_as_what_it_is(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(UnreadableInput, match=why):
        run(report, path, "--format", "text")


def test_runs_are_reported_on_one_at_a_time(trace: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=make_steps(3))
    with pytest.raises(EfprofError, match="cannot be reported with"):
        run(report, trace, tmp_path / "run")


def test_two_traces_are_compared(trace: Path, tmp_path: Path) -> None:
    halved = write(tmp_path / "head.json.gz", *slower(50, *[one for n in range(9) for one in step(1000 * n, n)]))
    longer = write(tmp_path / "base.json.gz", *slower(100, *[one for n in range(9) for one in step(1000 * n, n)]))
    output = run(compare, longer, halved).output
    assert "-50.0 %" in output
    assert output.startswith("UNCLEAR: These runs cannot tell whether head differs from base")


@pytest.mark.skipif(not REAL.is_dir(), reason="needs ../shared/data/traces")
@pytest.mark.parametrize("path", sorted(REAL.glob("*.gz")) or [Path()], ids=lambda path: path.name[:40])
def test_real_traces_have_a_page_and_no_check_breaks_on_them(path: Path, tmp_path: Path) -> None:
    if path.stat().st_size > 500_000:
        pytest.skip("the larger ones are read by make bench-trace")
    text = run(report, path, "--out", tmp_path / "page.html").output
    assert "Verdict" in text
    assert " broke" not in text
    assert "Where the time goes" in (tmp_path / "page.html").read_text()
