"""Runs tests many times, every second time beside busy loops, and says which of them fail now and then.

    python -m tests.support.repeat FILE ROUNDS [TEST...]

Without TEST they come from the variable TESTS: one per line, or on one line as a shell has them. FILE has two lines for
each test of each round, as it begins and as it ends: a run that was stopped goes on with what is missing there. A test
that began and never ended has failed: it crashed pytest, or somebody killed both. Lines of another state of the
repository, or of other TESTS, do not count. The same file is a plugin of pytest, which writes these lines.
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from hashlib import sha1
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from tests.support.busy import busy_loops

ROOT = Path(__file__).parents[2]
NUM_BUSY_LOOPS = 3
FILE, ROUND, SERIES = "EFPROF_REPEAT_FILE", "EFPROF_REPEAT_ROUND", "EFPROF_REPEAT_SERIES"
MAX_REASON = 300
ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
NEVER_ENDED = "pytest ended within this test"
DIGITS = 8
"""Of a hash, as git shows it."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Rounds that count together: those of one state of the repository and of the same TESTS."""

    commit: str = ""
    asked: str = ""
    """A hash of TESTS."""


class Result(msgspec.Struct, kw_only=True):
    """One test in one round; `stopped` is one that was under way when somebody stopped the run."""

    test: str
    round: int
    series: Series = Series()
    state: Literal["began", "stopped", "ended"] = "ended"
    seconds: float = 0.0
    load: float
    """The system's average of the last minute, as the line was written."""
    failure: str | None = None

    @property
    def is_busy(self) -> bool:
        return self.round % 2 == 1


def main(file: Path, num_rounds: int, tests: list[str], commit: str) -> int:
    series = Series(commit=commit, asked=sha1("\n".join(tests).encode()).hexdigest()[:DIGITS])
    file.parent.mkdir(parents=True, exist_ok=True)
    for number in range(num_rounds):
        try:
            with busy_loops(NUM_BUSY_LOOPS * (number % 2)):
                code = _run_round(file, series, number, tests)
        except KeyboardInterrupt:
            _note(file, series, state="stopped")  # it is no failure, and is run again
            print(f"Stopped in round {number}; the same command goes on there.", file=sys.stderr)
            return 2
        if code not in ENDED:
            print(f"pytest ended with {code} in round {number}, in no test.", file=sys.stderr)
            return 2
    results = [result for result in read_results(file, series) if result.round < num_rounds]
    print("\n".join([f"At {commit}:", *table(results)]))
    return int(any(result.failure for result in results))


def split_tests(text: str) -> list[str]:
    """One per line, as they are; on a single line as a shell has them, with quotes around blanks."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines if len(lines) > 1 else shlex.split(text)


def state_of(repository: Path) -> str:
    """The commit; and where files differ from it, new ones among them, a hash of what they are now."""
    commit = _git(repository, "rev-parse", "HEAD")
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": f"{folder}/index"}  # or `git add` would change what the user has staged
        _git(repository, "add", "--all", ".", **index)
        tree = _git(repository, "write-tree", **index)
    is_clean = tree == _git(repository, "rev-parse", "HEAD^{tree}")
    return commit[:DIGITS] if is_clean else f"{commit[:DIGITS]} changed to {tree[:DIGITS]}"


def read_results(file: Path, series: Series) -> list[Result]:
    """The last line of each test in each round of this series, but of those that were stopped."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    results = [msgspec.json.decode(line, type=Result) for line in lines]
    last = {(result.test, result.round): result for result in results if result.series == series}
    for result in last.values():
        if result.state == "began":
            result.failure = NEVER_ENDED
    return [result for result in last.values() if result.state != "stopped"]


def table(results: list[Result]) -> Iterator[str]:
    """A row for each test that failed, and how many did not."""
    by_test = defaultdict[str, list[Result]](list)
    for result in results:
        by_test[result.test].append(result)
    failed = {test: ones for test, ones in by_test.items() if any(one.failure for one in ones)}
    yield from ("| test | quiet | busy | the last failure |", "| --- | --- | --- | --- |")
    for test, ones in failed.items():
        reason = [one.failure for one in ones if one.failure][-1].replace("\n", " ").replace("|", "\\|")
        yield f"| {test} | {_count(ones, is_busy=False)} | {_count(ones, is_busy=True)} | {reason} |"
    num_rounds = len({result.round for result in results})
    yield f"{len(by_test) - len(failed)} of {len(by_test)} tests never failed in {num_rounds} rounds."


def _run_round(file: Path, series: Series, number: int, tests: list[str]) -> int:
    """How pytest ended. Where it crashed in a test, the round goes on with the others."""
    _note(file, series, state="ended")  # begun by a run that was killed
    while (code := _run(file, series, number, tests)) not in ENDED:
        if not _note(file, series, state="ended"):
            break
    return code


def _run(file: Path, series: Series, number: int, tests: list[str]) -> int:
    encoded = msgspec.json.encode(series).decode()
    environment = os.environ | {FILE: str(file.absolute()), ROUND: str(number), SERIES: encoded}
    plugin = ["-p", "tests.support.repeat", "-p", "no:cacheprovider", "--tb=short", "--no-header"]
    return subprocess.run([sys.executable, "-m", "pytest", *plugin, *tests], env=environment, check=False).returncode


def _note(file: Path, series: Series, *, state: Literal["stopped", "ended"]) -> int:
    """Write what became of tests that began and did not end, now that pytest is over; how many there were."""
    begun = [result for result in read_results(file, series) if result.state == "began"]
    for result in begun:
        _write(file, msgspec.structs.replace(result, state=state))
    return len(begun)


def _write(file: Path, result: Result) -> None:
    with file.open("ab") as lines:
        lines.write(msgspec.json.encode(result) + b"\n")


def _count(results: list[Result], *, is_busy: bool) -> str:
    ones = [result for result in results if result.is_busy == is_busy]
    return f"{sum(one.failure is not None for one in ones)} of {len(ones)} failed"


def _git(repository: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(repository), *arguments], env=os.environ | environment, capture_output=True, check=True
    )
    return done.stdout.decode().strip()


# What pytest calls in the process that runs a round.


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    results = read_results(Path(os.environ[FILE]), _series())
    done = {result.test for result in results if result.round == int(os.environ[ROUND])}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = [item for item in items if item.nodeid not in done]


_open: dict[str, Result] = {}


def pytest_runtest_logstart(nodeid: str) -> None:
    number, load = int(os.environ[ROUND]), os.getloadavg()[0]
    _open[nodeid] = Result(test=nodeid, round=number, series=_series(), load=load, state="began")
    _write(Path(os.environ[FILE]), _open[nodeid])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    result = _open[report.nodeid]
    result.seconds += report.duration
    if report.failed and result.failure is None:
        errors = [line[1:].strip() for line in report.longreprtext.splitlines() if line.startswith("E ")]
        result.failure = f"{report.when}: {' '.join(errors)}"[:MAX_REASON]
    if report.when == "teardown":
        ended = msgspec.structs.replace(_open.pop(report.nodeid), state="ended", load=os.getloadavg()[0])
        _write(Path(os.environ[FILE]), ended)


def _series() -> Series:
    return msgspec.json.decode(os.environ[SERIES], type=Series)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    chosen = sys.argv[3:] or split_tests(os.environ.get("TESTS", ""))
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), chosen, state_of(ROOT)))
