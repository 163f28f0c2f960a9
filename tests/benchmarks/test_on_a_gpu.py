"""The minutes on a GPU: what is cut off loses nothing, and the whole of it runs on a simulated device."""

import json
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from benchmarks.recording.on_a_gpu import minutes
from benchmarks.recording.on_a_gpu.minutes import TOTAL_S, Minutes, Part, parts
from benchmarks.recording.on_a_gpu.sessions import run_for
from benchmarks.recording.on_a_gpu.tables import Estimated, Found, Pair, Predicted, markdown
from benchmarks.recording.on_a_gpu.trainings import Outcome, Size, Told, Training
from efprof.artifacts.snapshot import read_snapshot
from efprof.units import GIB
from tests.support.waiting import FOR_EVER_S

ROOT = Path(__file__).parents[2]
AT_START = ROOT / "tests" / "simulated_cuda" / "at_start"
SIZE = Size(layers=1, width=8, heads=1, context=8, vocabulary=16, batch=2, steps=3)


def outcome(
    name: str, *, step_ms: float = 1.0, reserved_gib: int = 2, losses: tuple[float, ...] = (3, 2, 1)
) -> Outcome:
    told = Told(
        loop_s=1.0,
        losses=list(losses),
        step_ms=[step_ms] * 3,
        num_parameters=10**6,
        peak_allocated_bytes=GIB,
        peak_reserved_bytes=reserved_gib * GIB,
        accelerator="H",
    )
    return Outcome(training=Training(name=name, size=SIZE, device="cuda"), told=told)


def failed(name: str) -> Outcome:
    return Outcome(training=Training(name=name, size=SIZE, device="cuda"), error="exit code 1\nBoom")


def test_a_page_sets_recorded_beside_bare_and_predicted_beside_measured() -> None:
    recorded = outcome("recorded-1", step_ms=1.1, losses=(3, 2, 1.5))
    one = Predicted(settings="a:1", likely=GIB, low=GIB, high=2 * GIB, measured=outcome("settings-1"))
    other = Estimated(batch=1, likely=3 * GIB, low=GIB, high=4 * GIB, in_use=GIB, measured=outcome("batch-1"))
    found = Found(
        pairs=[Pair(bare=outcome("bare-1"), recorded=recorded)],
        predicted=[one],
        estimated=[other],
    )
    page = markdown(found, [recorded, failed("cpu-2")], "Commit 1.")
    assert "| 1 | 1.00 | 1.10 | 1.1000 | 1.00 | 1.00 | 1.000 / 2.000 | 1.000 / 2.000 |" in page
    assert "- recorded 1: 2 of 3 losses are equal to the last bit; they differ by at most 5.0e-01" in page
    assert "| a:1 | 1.000 | 1.000 to 2.000 | 2.000 | -50.00% |" in page
    assert "| 1 | 3.000 | 1.000 to 4.000 | 2.000 | +50.00% | 1.000 | 1.000 |" in page
    assert "- cpu-2\n\n```\nexit code 1\nBoom\n```" in page


def test_what_failed_leaves_no_figure() -> None:
    bare = failed("bare-1")
    found = Found(
        pairs=[Pair(bare=bare, recorded=failed("recorded-1"))], deterministic=[Pair(bare=bare, recorded=bare)]
    )
    assert markdown(found, [bare], "").count("Nothing was measured.") == 4


def test_all_limits_together_leave_time_to_pack() -> None:
    assert sum(part.limit_s for part in parts(8)) == TOTAL_S < 600


def test_a_command_that_takes_too_long_writes_its_last_words_and_ends_with_all_it_started(tmp_path: Path) -> None:
    """As after every test, a process that is left behind would be a failure."""
    text = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep({FOR_EVER_S})'])\n"
        f"try:\n    time.sleep({FOR_EVER_S})\nexcept KeyboardInterrupt:\n    print('last words')\n"
    )
    output = tmp_path / "output"
    began = time.monotonic()
    assert run_for(9.5, [sys.executable, "-c", text], os.environ, output=output, errors=output) is None
    assert time.monotonic() - began < 9.5
    assert output.read_text() == "last words\n"


def test_results_are_packed_after_each_part_and_what_is_too_large_stays_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minutes, "MAX_PACKED_BYTES", 20_000)
    results, out, wheels = tmp_path / "results", tmp_path / "out", tmp_path / "wheels"
    for folder in (results, out, wheels):
        folder.mkdir()
    with zipfile.ZipFile(wheels / "carried-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried_package.py", "NAME = 'carried'")
    (results / "large").write_bytes(os.urandom(30_000))
    session = Minutes(out, results, seconds=60)
    session.add_packages(wheels)
    session.run(Part(name="first", limit_s=50, words=("-c", "import carried_package as one; print(one.NAME)")))
    session.run(Part(name="second", limit_s=50, words=("-c", "raise SystemExit(3)")))
    with tarfile.open(out / "results.tgz") as archive:
        assert sorted(archive.getnames()) == ["results/first.txt", "results/second.txt"]
    log = (out / "log").read_text()
    assert "\ncarried\n" in log
    assert "== second: exit code 3 after" in log
    assert "not packed, too large: large, 30,000 bytes" in log


def test_where_no_time_is_left_a_part_is_not_begun(tmp_path: Path) -> None:
    session = Minutes(tmp_path, tmp_path / "results", seconds=0)
    session.run(Part(name="late", limit_s=50, words=("-c", "print('begun')")))
    assert (tmp_path / "log").read_text() == "== late: not begun, no time was left\n"


@pytest.mark.long
def test_all_of_it_runs_on_a_simulated_device(tmp_path: Path) -> None:
    """Its memory is served by the model that predicts it, so that each prediction is right."""
    path = os.pathsep.join([str(AT_START), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [
        sys.executable,
        "-m",
        "benchmarks.recording.on_a_gpu",
        "--tiny",
        "--seconds",
        "400",
        "--out",
        str(tmp_path),
    ]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=True, capture_output=True)
    page, figures = (tmp_path / "gpt.md").read_text(), json.loads((tmp_path / "gpt.json").read_bytes())
    assert "12 of 12 losses are equal to the last bit" in page
    assert "Bare and recorded: 8 of 8 losses are equal to the last bit" in page
    assert page.count("| +0.00% |") >= 4
    assert page.endswith("## What failed\n\nNothing.\n")
    assert all(figures.values())
    assert read_snapshot(tmp_path / "runs" / "gpt" / "rank0" / "memory-1.pickle").segments
    assert (tmp_path / "gpt-report.html").exists()
