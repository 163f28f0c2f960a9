"""What events around a stage tell on a CUDA device, and that no finding claims more than that was idle."""

import time
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped, NonFiniteSeen, WindowOpened
from efprof.commands.report import analyse
from tests.gpu.cuda_runs import needs_cuda, record_text
from tests.recorder.loop.test_device_time import (
    BUSY_MS,
    FETCH_MS,
    SHORT_MS,
    bad_at,
    finding_of,
    mean,
    metric,
    read_now,
    result_of,
    train,
)
from tests.recorder.recording import record_here

pytestmark = needs_cuda

CYCLES = 10**8
BUSY = BUSY_MS[0]


def cycles_per_ms() -> float:
    """Of `torch.cuda._sleep`, at the clock that the device has now."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(CYCLES)
    start.record()
    torch.cuda._sleep(CYCLES)
    end.record()
    end.synchronize()
    return CYCLES / start.elapsed_time(end)


def launch(milliseconds: float) -> None:
    torch.cuda._sleep(round(milliseconds * PER_MS[0]))


PER_MS = [0.0]


@pytest.fixture(autouse=True)
def _clock() -> None:
    PER_MS[0] = cycles_per_ms()


def between_marks(busy_ms: float, host_ms: float) -> float:
    """What a pair of events tells between which the host only sleeps, on a device with so much left to do."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    launch(busy_ms)
    start.record()
    time.sleep(host_ms / 1000)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def test_events_around_a_stage_that_queues_nothing_tell_how_long_the_device_was_idle() -> None:
    assert between_marks(0.1, 50) > 45
    assert between_marks(400, 50) < 5
    assert 10 < between_marks(30, 60) < 50


def test_a_device_that_is_busy_while_the_host_fetches_waits_for_nothing(tmp_path: Path) -> None:
    record_here(tmp_path, lambda: train(lambda: launch(BUSY)))
    report = analyse(tmp_path)
    assert min(metric(report, "data_ms")) >= FETCH_MS
    assert mean(metric(report, "data_device_ms")) < 1.0
    assert mean(metric(report, "forward_device_ms")) >= BUSY / 2
    assert result_of(report, "input_stall").status == "passed"


def test_a_device_that_starves_waits_for_the_rest_of_the_fetch_alone(tmp_path: Path) -> None:
    record_here(tmp_path, lambda: train(lambda: launch(SHORT_MS)))
    report = analyse(tmp_path)
    gain = finding_of(report, "input_stall").gain.step_ms or 0
    assert 0.5 * (FETCH_MS - SHORT_MS) < gain <= mean(metric(report, "device_idle_ms"))


def test_a_read_costs_what_the_device_is_idle_after_it_and_not_what_it_waits_for(tmp_path: Path) -> None:
    record_here(tmp_path, lambda: train(lambda: launch(BUSY), read_now))
    report = analyse(tmp_path)
    idle_ms = mean(metric(report, "device_idle_ms"))
    assert FETCH_MS * 0.9 <= idle_ms < BUSY / 2
    assert finding_of(report, "blocking_scalar_read").gain.step_ms == pytest.approx(idle_ms)


def test_a_value_that_went_bad_on_a_device_is_to_be_hunted(tmp_path: Path) -> None:
    recorded = record_here(tmp_path, lambda: bad_at(7), windows=())
    assert [(event.step, event.is_late) for event in recorded.events(NonFiniteSeen)] == [(7, True)]
    assert "`efprof hunt " in finding_of(analyse(tmp_path), "nonfinite_loss").fix.summary


OWN_GRAPH = """
import torch

model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
inputs = torch.ones(64, 256, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    doubled = inputs * 2
for _ in range(60):
    graph.replay()
    model(doubled).sum().backward()
    optimizer.step()
"""


def test_windows_of_a_program_with_graphs_of_its_own_do_not_crash_it(tmp_path: Path) -> None:
    options = ("--trace-steps", "3:5,7:9,20:22", "--memory-steps", "none", "--triggers", "none", "--overhead", "100%")
    recorded = record_text(tmp_path, OWN_GRAPH, *options)
    assert recorded.exit_code == 0, recorded.errors
    is_mended = tuple(map(int, str(torch.version.cuda).split("."))) >= (12, 6)
    assert len(recorded.events(WindowOpened)) == (3 if is_mended else 0)
    assert bool(recorded.events(CollectorStopped)) == (not is_mended)


TUNED = """
import torch

model = torch.compile(torch.nn.Linear(512, 512).cuda(), mode="max-autotune-no-cudagraphs")
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for rows in (64, 64, 512, 512, 1024):
    model(torch.ones(rows, 512, device="cuda")).square().mean().backward()
    optimizer.step()
"""


def test_what_a_compiler_waits_for_to_choose_a_kernel_is_no_line_of_the_program(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    steps = record_text(tmp_path, TUNED, "--windows", "none").steps
    assert len(steps) == 5
    assert [step.stalls + step.reads for step in steps] == [[]] * 5
