"""Many files are read at once; a reader that is killed costs a retry, or one sentence about its file."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from efprof.artifacts import engine
from efprof.artifacts.engine import carry_out, in_processes
from efprof.artifacts.foreign import as_run
from efprof.commands.compare import compare
from efprof.commands.report import report
from efprof.facts.run.run import open_run
from efprof.facts.time.rank_times import RankTimes
from efprof.model import EfprofError, UnreadableInput
from tests.facts.time.traces import step, write


def dies_once(marker: Path, victim: int | None = None) -> str:
    """Kill this process, or that which waits for it, in the middle of the first try."""
    if marker.exists():
        return "read"
    marker.touch()
    os.kill(os.getppid() if victim is None else victim, signal.SIGKILL)
    return ""


def dies() -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def is_wrong() -> float:
    return 1 / 0


def is_broken() -> str:
    raise UnreadableInput("it is broken.")


def here(marker: Path) -> str:
    return dies_once(marker, os.getpid())


def test_answers_come_in_the_order_of_the_works_whatever_becomes_of_the_readers(tmp_path: Path) -> None:
    works = [("a", partial(here, tmp_path / "a")), ("b", dies), ("c", is_broken), ("d", partial(int, "4"))]
    first, second, third, fourth = in_processes(works, 2)
    assert (first, str(third), fourth) == ("read", "it is broken.", 4)
    assert str(second) == "b cannot be read: its reader ended with -9, as where memory is short."


def test_a_process_does_several_of_many_works_and_one_that_is_killed_costs_those_after_it_nothing(
    tmp_path: Path,
) -> None:
    works = [("a", partial(here, tmp_path / "a")), ("b", dies), ("c", is_broken), *([("d", os.getpid)] * 29)]
    first, second, third, *pids = in_processes(works, 2)
    assert (first, str(third)) == ("read", "it is broken.")
    assert str(second) == "b cannot be read: its reader ended with -9, as where memory is short."
    assert len(pids) == 29
    assert 1 < len(set(pids)) <= 11


def test_a_single_work_is_not_tried_again_and_an_error_of_ours_is_named_with_its_place(tmp_path: Path) -> None:
    (only,) = in_processes([("a", partial(here, tmp_path / "a"))], 1)
    assert "ended with -9" in str(only)
    with pytest.raises(RuntimeError, match=r"ZeroDivisionError: .* \(.*test_engine.py:\d+\)"):
        in_processes([("a", is_wrong)], 1)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--engine", "ray://here", "t.json"), "write the address of a scheduler"),
        (("--engine", "dask://here", "s3://bucket/run"), "its workers do not see the copy"),
    ],
)
def test_another_engine_or_one_for_a_url_is_refused(words: tuple[str, ...], why: str) -> None:
    for command, more in ((report, ()), (compare, ("base",))):
        with pytest.raises(EfprofError, match=why):
            CliRunner().invoke(command, (*words, *more), catch_exceptions=False)


def test_a_scheduler_that_does_not_answer_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(engine, "CONNECT_S", "1s")
    with pytest.raises(EfprofError, match="no scheduler of Dask answers"):
        carry_out([("a", dies)], "dask://127.0.0.1:1")


@pytest.mark.long
def test_on_a_cluster_a_killed_worker_costs_a_retry_and_a_broken_file_one_sentence(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    paths = [write(tmp_path / f"{rank}.json.gz", *step(), rank=rank) for rank in (0, 1)]
    (tmp_path / "broken.json").write_text('{"traceEvents": [')
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        address = cluster.scheduler_address.replace("tcp", "dask")
        first = carry_out([("a", partial(dies_once, tmp_path / "died"))], address)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            carry_out([("a", is_wrong)], address)
        with as_run(*paths, tmp_path / "broken.json") as folder:
            run = open_run(folder)
            run.engine = address
            times = run.get(RankTimes)
    assert (first, (tmp_path / "died").exists()) == (["read"], True)
    assert sorted(times.ranks) == [0, 1]
    assert [str(tmp_path / "broken.json") in error for error in times.errors] == [True]
