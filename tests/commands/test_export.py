"""The steps that are worth a look are written as they were recorded, with a mark of ours, for Perfetto."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from efprof.artifacts.trace.columns import Trace
from efprof.artifacts.trace.read import read_window
from efprof.commands.export import export
from efprof.facts.time.trace_windows import foreign_window
from efprof.model import EfprofError
from tests.commands.test_traces import run
from tests.facts.time.traces import REAL, kernel, launch, slower, step, write
from tests.support.device_traces import REAL_TRACES

RECORDED = Path(__file__).parents[1] / "runs" / "blocking_scalar_read-sick"


def written(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return found


def ours(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event.get("cat") == "efprof"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Steps of 100, 110 and 130 ms; the second launches what runs in the third, and has no loader."""
    second = [one for one in step(1000, 1) if not one["name"].startswith("enumerate")]
    second += [launch(999, 1990), kernel(999, 2900, 50)]
    names = [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}}]
    arrows = [
        {"ph": phase, "id": 999, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1, "ts": at, "dur": 0}
        for phase, at in (("s", 1990), ("f", 2900))
    ]
    label, *third = step(2100, 2)
    return write(
        tmp_path / "t.json.gz", *slower(100, *step(0, 0), *second, *arrows, label | {"dur": 1300}, *third), *names
    )


def test_the_typical_step_is_written_as_it_was_with_what_it_launched(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json.gz"
    said = run(export, "--perfetto", trace, "--out", out).output
    events, original = written(out), written(trace)
    kept = [event for event in events if event in original]
    expected = [
        event
        for event in original
        if event["ph"] == "M" or event.get("id") == 999 or event["args"].get("correlation") == 999
        or 100_000 <= event["ts"] < 210_000
    ]  # fmt: skip
    assert "Steps: 1." in said
    assert [json.dumps(event) for event in kept] == [json.dumps(event) for event in expected]
    (mark,) = ours(events)
    assert (mark["name"], mark["ts"], len(events)) == ("the typical step", 100_000, len(kept) + 1)
    assert foreign_window(read_window(out)).numbers == (1,)


def test_the_steps_of_a_finding_are_those_in_which_its_line_ran_with_the_finding_at_its_beginning(
    trace: Path, tmp_path: Path
) -> None:
    for name in ("2", "input_stall"):
        out = tmp_path / f"{name}.json.gz"
        assert "Steps: 0, 1, 2." in run(export, "--perfetto", trace, name, "--out", out).output
        marks = ours(written(out))
        assert [(mark["name"], mark["ts"]) for mark in marks] == [
            ("Training waits for its data", at) for at in (0, 100_000, 210_000)
        ]
    assert marks[0]["args"]["line"] == "train.py:5"


def test_a_recorded_run_keeps_the_times_of_its_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (path,) = (line for line in run(export, "--perfetto", RECORDED, "1").output.splitlines() if line.endswith(".gz"))
    found = read_window(Path(path))
    marks = [at for at, code in enumerate(found.category.tolist()) if found.texts[code] == "efprof"]
    whole = foreign_window(found)
    assert marks
    assert all(whole.steps[0][0] <= found.start_ns[mark] <= whole.steps[-1][1] for mark in marks)


def test_what_cannot_be_exported_is_one_sentence(trace: Path) -> None:
    with pytest.raises(EfprofError, match="add --perfetto"):
        run(export, trace)
    with pytest.raises(EfprofError, match="no finding 'input_stal' in this report; did you mean 'input_stall'"):
        run(export, "--perfetto", trace, "input_stal")


@pytest.mark.skipif(not REAL_TRACES.is_dir(), reason=f"needs {REAL_TRACES}")
@pytest.mark.parametrize("name", ["tracelens__torch_compile_triton", "kineto_tb__resnet50_num_workers_0"])
def test_steps_of_real_traces_are_read_again_alike(name: str, tmp_path: Path) -> None:
    (path,) = REAL.glob(f"{name}*")
    out = tmp_path / "out.json.gz"
    run(export, "--perfetto", path, "--out", out)
    before, after = (
        Counter((trace.text(at), int(trace.start_ns[at]), int(trace.duration_ns[at])) for at in kept(trace))
        for trace in (read_window(path), read_window(out))
    )
    assert after
    assert after <= before


def kept(trace: Trace) -> list[int]:
    """The places of the events that are none of ours."""
    return [at for at, code in enumerate(trace.category.tolist()) if trace.texts[code] != "efprof"]
