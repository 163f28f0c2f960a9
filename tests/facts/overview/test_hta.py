"""What HTA says: beside our own figures on real traces where it is installed; anywhere, one sentence where it fails."""

import gzip
import json
import math
import os
import time
from collections.abc import Sequence
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from efprof.artifacts.trace.read import read_window
from efprof.commands.report import report
from efprof.facts.overview import hta
from efprof.facts.time.call_paths import LAUNCHES, ON_DEVICE
from efprof.facts.time.device_lanes import device_use
from tests.facts.time.traces import REAL, event, step, write

needs_hta = pytest.mark.skipif(find_spec("hta") is None, reason="HolisticTraceAnalysis is not installed: 'make hta'")
TRACES = sorted(path for path in REAL.glob("*.gz") if "cpu_only" not in path.name and "cupti" not in path.name)
Span = tuple[Decimal, Decimal]


def spans_of(path: Path) -> tuple[list[Span], list[Span]]:
    """By the text of the file, start and end of all work of the device, and of that which HTA looks at."""
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal, parse_int=Decimal)["traceEvents"]
    complete = [one for one in events if one.get("ph") == "X"]
    launched = {one["args"].get("correlation") for one in complete if one["cat"].lower() in LAUNCHES and "args" in one}
    work = [one for one in complete if one["cat"].lower() in ON_DEVICE]
    has_steps = len({one["name"] for one in events if str(one.get("name")).startswith("ProfilerStep")}) > 1
    spans = [((one["ts"], one["ts"] + one["dur"]), one["args"].get("correlation") in launched) for one in work]
    return [span for span, _ in spans], [span for span, is_launched in spans if is_launched or not has_steps]


def idle_share(spans: Sequence[Span]) -> float:
    """Percent of the time from the first start to the last end in which there is nothing."""
    first, idle = min(spans)[0], Decimal(0)
    reached = first
    for start, end in sorted(spans):
        idle += max(Decimal(0), start - reached)
        reached = max(reached, end)
    return float(100 * idle / (reached - first))


def idle_by_hta(path: Path) -> float:
    tables, _ = hta._asked(path)
    (table,) = (one for one in tables if one.title == "Time of the device")
    return float(table.rows[0][-1])


@needs_hta
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name[:40])
def test_a_device_is_idle_as_long_as_hta_says(path: Path) -> None:
    trace = read_window(path)
    events = np.flatnonzero(trace.is_of(*ON_DEVICE))
    use = device_use(trace, int(trace.start_ns[events].min()), int(trace.end_ns[events].max()))
    work, counted = spans_of(path)
    assert use is not None
    ours, theirs = 100 * (1 - use.busy_ns / use.span_ns), idle_by_hta(path)
    print(f"| {path.name} | {idle_share(work):.3f} | {ours:.3f} | {theirs:.2f} |")
    assert ours == pytest.approx(idle_share(work), abs=0.001)
    assert theirs == pytest.approx(idle_share(counted), abs=0.1)
    assert abs(ours - theirs) <= 0.1 or len(counted) < len(work), "a kernel without its launch is work too"


@needs_hta
@pytest.mark.parametrize("name", ["mi250_minitoy", "gaunernst_bert", "mi210__gpu_only"])
def test_hta_finds_more_idle_time_where_it_rounds_nanoseconds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from hta.configs.env_options import HTAEnvOptions

    monkeypatch.setattr(HTAEnvOptions, "disable_ns_rounding", lambda _: False)
    (path,) = (path for path in TRACES if name in path.name)
    work, _ = spans_of(path)
    rounded = [(Decimal(math.ceil(start)), Decimal(math.floor(end))) for start, end in work]
    theirs = idle_by_hta(path)
    print(f"| {path.name} | {idle_share(work):.3f} | {idle_share(rounded):.3f} | {theirs:.2f} |")
    assert theirs == pytest.approx(idle_share(rounded), abs=0.1), "each kernel loses up to 2 us"
    assert idle_share(rounded) > idle_share(work) + 0.1


@needs_hta
def test_hta_reads_a_file_that_is_not_packed_as_its_name_says(tmp_path: Path) -> None:
    (path,) = (path for path in TRACES if "mi210__gpu_only" in path.name)
    plain = tmp_path / "plain.json.gz"
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    assert idle_by_hta(plain) == idle_by_hta(path)


def page_of(folder: Path, *events: dict[str, object]) -> str:
    page = folder / "page.html"
    words = ("--hta", str(write(folder / "t.json.gz", *events)), "--out", str(page))
    CliRunner().invoke(report, words, catch_exceptions=False)
    return page.read_text()


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"PACKAGE": "no-such-package"}, "HolisticTraceAnalysis is not installed here: <code>"),
        ({"_loaded": lambda path: {}[f"in {path}"]}, "HTA broke off: KeyError: &#39;in "),
        ({"_loaded": lambda _: os._exit(3)}, "what HTA says cannot be read: its reader ended with 3."),
        ({"_loaded": lambda _: time.sleep(600), "LONGEST_S": 1}, "its reader took too long."),
    ],
)
def test_hta_that_is_missing_or_fails_is_one_sentence_of_the_report(
    changed: dict[str, object], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ({"PACKAGE": "pytest"} | changed).items():
        monkeypatch.setattr(hta, name, value)
    said = page_of(tmp_path, *step()).split("What HTA says</summary>")[1].split("</details>")[0]
    assert said.count("<p") == 1
    assert sentence in said


def test_hta_is_not_asked_about_a_trace_without_a_device(tmp_path: Path) -> None:
    assert "What HTA says" not in page_of(tmp_path, event("ProfilerStep#1", 0, 100, "user_annotation"))
