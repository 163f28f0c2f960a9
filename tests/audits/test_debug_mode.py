"""debug_mode: fires on the line that left a mode on, and on a variable where it slows a GPU."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from efprof.artifacts.events import ANOMALY, SampledPlace, TrainingSampled
from efprof.artifacts.readings import LONG_STEPS_FILE, LongStep, SampledStack
from efprof.artifacts.steps import SiteCalls
from efprof.audits.debug_mode import debug_mode
from efprof.facts.run.run import Run, open_run
from efprof.facts.steps.step_times import StepTimes
from efprof.facts.time.anomaly_detection import anomaly_ms
from efprof.model import CodeEdit, EnvironmentVariable, Finding, NotRecorded
from tests.support.builders import make_step, write_run

RUNS = Path(__file__).parents[1] / "runs"
SOURCE = """\
def train(model, optimizer):
    torch.autograd.set_detect_anomaly(True)
    for batch in batches:
        model(batch).sum().backward()
        gc.collect()
"""
ON_GPU = "CUDA caching allocator"


def run_of(folder: Path, call: str = "", *, line: int = 2, every: int = 1, us: float = 0.0, **fields: Any) -> Run:
    steps = [make_step(step) for step in range(40)]
    for step in steps[::every] if call else ():
        step.stalls = [SiteCalls(site=f"train.py:{line}:train", call=call, count=1, us=us)]
    return write_run(folder, steps=steps, **{"sources": {"train.py": SOURCE}, **fields})


def only(run: Run) -> Finding:
    (finding,) = debug_mode(run).findings
    return finding


def test_anomaly_detection_without_a_window_is_told_unmeasured_and_its_line_deleted(tmp_path: Path) -> None:
    finding = only(run_of(tmp_path / "run", "anomaly detection"))
    assert finding.message == "Steps run with anomaly detection on, at train.py:2."
    assert (finding.severity, finding.gain.step_ms) == ("high", None)
    old = "    torch.autograd.set_detect_anomaly(True)"
    assert finding.fix.changes == (CodeEdit(file="train.py", line=2, old=old, new=""),)


def test_of_anomaly_detection_what_samples_saw_is_told_as_the_least_and_no_saving_is_claimed(tmp_path: Path) -> None:
    for share, severity in ((0.4, "high"), (0.1, "medium")):
        lines = [SampledPlace("train.py:4:train", "forward", is_in_library=True, us=1e6 * share, function=ANOMALY)]
        sampled = TrainingSampled(step=30, num_samples=500, total_us=1e6, lines=lines)
        run = run_of(tmp_path / severity, "anomaly detection", events=[sampled])
        step_ms = run.get(StepTimes).median_ms()
        finding = only(run)
        assert (finding.severity, finding.gain.step_ms) == (severity, None)
        assert finding.message.startswith("At least")
        assert 0.7 * share * step_ms < anomaly_ms(run) < share * step_ms


def test_a_mode_that_a_with_statement_sets_leaves_a_block_to_dedent(tmp_path: Path) -> None:
    block = "    with torch.autograd.detect_anomaly():\n        for batch in batches:"
    source = SOURCE.replace("    torch.autograd.set_detect_anomaly(True)\n    for batch in batches:", block)
    source = source.replace("        model", "            model").replace("        gc", "            gc")
    fix = only(run_of(tmp_path / "run", "anomaly detection", sources={"train.py": source})).fix
    assert fix.summary.startswith(
        "Take anomaly detection out of `with torch.autograd.detect_anomaly():`; dedent the block"
    )
    assert fix.changes == ()


def test_a_garbage_collection_in_each_step_is_told_with_its_time(tmp_path: Path) -> None:
    finding = only(run_of(tmp_path / "run", "gc.collect", line=5, us=6_000.0))
    assert (str(finding.blame), finding.gain.step_ms) == ("train.py:5", pytest.approx(6.0))


def test_a_profiler_that_sees_some_steps_and_a_collection_now_and_then_are_silent(tmp_path: Path) -> None:
    assert debug_mode(run_of(tmp_path / "profiler", "torch.profiler", every=5)).findings == ()
    assert debug_mode(run_of(tmp_path / "collection", "gc.collect", every=10, us=6_000.0)).findings == ()
    assert debug_mode(run_of(tmp_path / "short", "gc.collect", us=10.0)).findings == ()
    assert only(run_of(tmp_path / "always", "torch.profiler")).severity == "medium"


def test_of_a_profiler_is_told_what_it_took_in_long_steps_to_put_its_records_together(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", "torch.profiler")
    stack = SampledStack(("train.py:3:train",), "torch.autograd.profiler.profile.__exit__", 2.0, 0.0)
    with (run.rank_folder / LONG_STEPS_FILE).open("wb") as file:
        file.write(msgspec.json.encode(LongStep(step=9, started_ns=1, stacks=[stack])) + b"\n")
    finding = only(run)
    assert finding.message == "50.0 ms of each step (on average) go to torch.profiler, at train.py:2."
    assert finding.gain.step_ms == pytest.approx(50.0)


def test_blocking_launches_are_told_on_a_gpu_alone(tmp_path: Path) -> None:
    blocking = {"environment": {"CUDA_LAUNCH_BLOCKING": "1"}}
    finding = only(run_of(tmp_path / "gpu", memory_source=ON_GPU, **blocking))
    assert finding.fix.changes == (EnvironmentVariable(name="CUDA_LAUNCH_BLOCKING", old="1", new="0"),)
    assert debug_mode(run_of(tmp_path / "cpu", **blocking)).findings == ()
    off = {"environment": {"CUDA_LAUNCH_BLOCKING": "0"}}
    assert debug_mode(run_of(tmp_path / "off", memory_source=ON_GPU, **off)).findings == ()


def test_a_variable_that_the_program_sets_itself_is_blamed_on_its_line(tmp_path: Path) -> None:
    sources = {"train.py": 'import os\n\nos.environ["CUDA_LAUNCH_BLOCKING"] = "1"\n'}
    settings = {"CUDA_LAUNCH_BLOCKING": "1"}
    finding = only(run_of(tmp_path / "run", memory_source=ON_GPU, settings=settings, sources=sources))
    assert str(finding.blame) == "train.py:3"


def test_the_recorded_field_is_found_with_what_samples_saw_and_its_twin_is_silent() -> None:
    finding = only(open_run(RUNS / "debug_mode-sick"))
    assert finding.blame.text.endswith("# fault")
    assert finding.message.startswith("At least ")
    assert finding.severity == "high"
    assert debug_mode(open_run(RUNS / "debug_mode-healthy")).findings == ()


def test_a_run_without_steps_names_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match=r"steps\.jsonl"):
        debug_mode(write_run(tmp_path / "run"))
