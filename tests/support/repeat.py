"""Runs tests many times, every second time beside busy loops, and says which of them fail now and then.

    python -m tests.support.repeat FILE ROUNDS TEST...

FILE has a line for each test of each round: a run that was stopped goes on with what is missing there. The same file is
a plugin of pytest, which writes these lines. Delete FILE to begin again.
"""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support.busy import busy_loops

NUM_BUSY_LOOPS = 3
FILE, ROUND = "EFPROF_REPEAT_FILE", "EFPROF_REPEAT_ROUND"
MAX_REASON = 300
ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


class Result(msgspec.Struct, kw_only=True):
    """One test in one round."""

    test: str
    round: int
    seconds: float = 0.0
    load: float
    """The system's average of the last minute, as the test ended."""
    failure: str | None = None

    @property
    def is_busy(self) -> bool:
        return self.round % 2 == 1


def main(file: Path, num_rounds: int, tests: list[str]) -> int:
    file.parent.mkdir(parents=True, exist_ok=True)
    for number in range(num_rounds):
        with busy_loops(NUM_BUSY_LOOPS * (number % 2)):
            code = _run(file, number, tests)
        if code not in ENDED:
            print(f"pytest ended with {code} in round {number}; the same command goes on there.", file=sys.stderr)
            return 2
    results = [result for result in read_results(file) if result.round < num_rounds]
    print("\n".join(table(results)))
    return int(any(result.failure for result in results))


def read_results(file: Path) -> list[Result]:
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=Result) for line in lines]


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


def _run(file: Path, number: int, tests: list[str]) -> int:
    environment = os.environ | {FILE: str(file.absolute()), ROUND: str(number)}
    plugin = ["-p", "tests.support.repeat", "-p", "no:cacheprovider", "--tb=short", "--no-header"]
    return subprocess.run([sys.executable, "-m", "pytest", *plugin, *tests], env=environment, check=False).returncode


def _count(results: list[Result], *, is_busy: bool) -> str:
    ones = [result for result in results if result.is_busy == is_busy]
    return f"{sum(one.failure is not None for one in ones)} of {len(ones)} failed"


# What pytest calls in the process that runs a round.


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    done = {one.test for one in read_results(Path(os.environ[FILE])) if one.round == int(os.environ[ROUND])}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = [item for item in items if item.nodeid not in done]


_open: dict[str, Result] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    number, load = int(os.environ[ROUND]), os.getloadavg()[0]
    result = _open.setdefault(report.nodeid, Result(test=report.nodeid, round=number, load=load))
    result.seconds += report.duration
    if report.failed and result.failure is None:
        errors = [line[1:].strip() for line in report.longreprtext.splitlines() if line.startswith("E ")]
        result.failure = f"{report.when}: {' '.join(errors)}"[:MAX_REASON]
    if report.when == "teardown":
        with Path(os.environ[FILE]).open("ab") as lines:
            lines.write(msgspec.json.encode(_open.pop(report.nodeid)) + b"\n")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
