"""Runs the tests that depend on torch under several releases of it, each in an environment of its own.

    python -m tests.support.versions FILE PYTHON VERSION...

VERSION is `oldest`, the first release that efprof takes; a release such as `2.11`, of which pip picks the last patch;
or `newest`, which is what pip picks. Each environment holds torch as PyPI has it, what efprof itself needs and the
tools of the tests: some 6 GB in the temporary folder (TMPDIR), removed before the next one is made. A path in place of
VERSION is the Python of an environment that has all that: it is tried as it is, and stays. FILE gets a row per version
and PYTHON; its other rows stay.
"""

import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.machine import processors
from efprof.recorder.hooks.torch_versions import OLDEST
from tests.support.repeat import ROOT, state_of

TESTS = (
    "tests/recorder", "tests/simulated_cuda", "tests/artifacts", "tests/facts/allocator", "tests/facts/device",
    "tests/commands/test_doctor.py",
)  # fmt: skip
TOOLS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
"""Not all of `dev`: tests of other packages skip without them."""

OPTIONS = (
    "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart=0",
    "--continue-on-collection-errors", "-m", "not long and not gpu",
)  # fmt: skip

PYTHON = "import platform; print(platform.python_version())"
TORCH = "import torch; print(torch.__version__)"

MAX_NAMES = 10
"""Of tests that failed: who wants more runs the version alone."""

TITLE = """\
# Versions of torch

`make versions` writes a row for each version: the tests of the recorder, also on the simulated device, of the readers,
of the allocator's model and of `efprof doctor`, in an environment of torch from PyPI and what efprof needs. No device
is used. `oldest` is the first release that efprof takes, `newest` what pip picks. Tests that take long are left out.
"""
HEADER = "| version | Python | torch | passed | failed | skipped | took | machine, date, commit |"
RULE = "| --- | --- | --- | --- | --- | --- | --- | --- |"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What pytest counted: `failed` are names, `skipped` reasons with their numbers."""

    num_passed: int
    failed: tuple[str, ...]
    skipped: Counter[str]

    @property
    def cells(self) -> tuple[str, str, str]:
        counts = Counter(name.partition("[")[0] for name in self.failed)
        names = [f"`{name}`" + (f" ({number})" if number > 1 else "") for name, number in counts.items()]
        names = [*names[:MAX_NAMES], f"{len(names) - MAX_NAMES} other tests"] if len(names) > MAX_NAMES else names
        failed = f"{len(self.failed)}: {', '.join(names)}" if names else "0"
        reasons = "; ".join(f"{number} {reason}" for reason, number in self.skipped.most_common())
        return str(self.num_passed), failed, f"{self.skipped.total()}: {reasons}" if reasons else "0"


def main(file: Path, python: str, versions: list[str]) -> int:
    """Try each version; 1 where one failed or could not be installed."""
    is_fine = True
    for version in versions:
        with TemporaryDirectory(prefix="efprof-versions-") as folder:
            is_made = "/" in version
            row, passed = _try_made(Path(version), Path(folder)) if is_made else _try(version, python, Path(folder))
        is_fine = is_fine and passed
        print(row, flush=True)
        file.write_text(with_row(file.read_text() if file.exists() else "", row))  # what ends early keeps what it has
    return int(not is_fine)


def requirement_of(version: str) -> str:
    if version == "newest":
        return "torch"
    return f"torch=={'.'.join(map(str, OLDEST))}.0" if version == "oldest" else f"torch=={version}.*"


def outcome_of(junit: Path) -> Outcome:
    """What pytest wrote with `--junitxml`; an error in a fixture or at collection is a failure."""
    failed, skipped, num_passed = [], Counter[str](), 0
    for case in ElementTree.parse(junit).iter("testcase"):
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(case.get("name", ""))
        elif skip is not None:
            skipped[skip.get("message", "").strip()] += 1
        else:
            num_passed += 1
    return Outcome(num_passed=num_passed, failed=tuple(failed), skipped=skipped)


def with_row(text: str, row: str) -> str:
    """The report with this row, in place of the one of the same version and Python."""
    kept = [line for line in text.splitlines() if line.startswith("| ") and line not in (HEADER, RULE)]
    rows = {tuple(line.split("|")[1:3]): line for line in [*kept, row]}
    return "\n".join([TITLE, HEADER, RULE, *rows.values()]) + "\n"


def _try(version: str, base: str, folder: Path) -> tuple[str, bool]:
    """The row of one version, and whether all of its tests passed."""
    began = time.monotonic()
    python = folder / "bin" / "python"
    subprocess.run([base, "-m", "venv", folder], check=True)
    name = (version, _said_by(python, PYTHON))
    wanted = [requirement_of(version), "-e", str(ROOT), *TOOLS]
    installed = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if installed.returncode:
        said = (installed.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        return _row(*name, "not installed", "", "", said, began), False
    print(f"{version} is torch {_said_by(python, TORCH)}, installed in {time.monotonic() - began:.0f} s", flush=True)
    return _tested(python, name, folder)


def _try_made(python: Path, folder: Path) -> tuple[str, bool]:
    return _tested(python, (_said_by(python, TORCH).partition("+")[0], _said_by(python, PYTHON)), folder)


def _tested(python: Path, name: tuple[str, str], folder: Path) -> tuple[str, bool]:
    began, torch, junit = time.monotonic(), _said_by(python, TORCH), folder / "junit.xml"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [python, "-m", "pytest", *OPTIONS, f"--junitxml={junit}", *TESTS]
    subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if not junit.exists():
        return _row(*name, torch, "", "pytest ended without a result", "", began), False
    outcome = outcome_of(junit)
    return _row(*name, torch, *outcome.cells, began), not outcome.failed


def _said_by(python: Path, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()


def _row(version: str, python: str, torch: str, passed: str, failed: str, skipped: str, began: float) -> str:
    machine = f"{processors()}, {time.strftime('%Y-%m-%d', time.gmtime())}, {state_of(ROOT)}"
    cells = (version, python, torch, passed, failed, skipped, f"{time.monotonic() - began:.0f} s", machine)
    return f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or some 6 GB would stay
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
