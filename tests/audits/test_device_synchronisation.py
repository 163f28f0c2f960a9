"""device_synchronisation: blames what waits without reading a value, tells what torch waits for, each wait once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from efprof.artifacts.steps import SiteCalls
from efprof.audits.blocking_scalar_read import blocking_scalar_read
from efprof.audits.device_synchronisation import device_synchronisation
from efprof.facts.time.call_paths import LAUNCHES
from efprof.facts.time.device_lanes import overlap_ns, union
from efprof.facts.time.host_waits import HostWaits
from efprof.facts.time.time_use import TimeUse
from efprof.facts.time.trace_waits import SYNCHRONIZE, before_the_end, waits_in
from efprof.model import NothingToLookAt, NotRecorded, Table
from tests.support.builders import GPU, START_NS, make_busy_step, make_steps, write_run
from tests.support.device_traces import (
    REAL_TRACES,
    Events,
    call,
    foreign_run,
    has_real_traces,
    kernel,
    launched,
    operator,
    real_run,
    runtime,
    step,
)

STEP_MS, COPY = 10.0, "Memcpy DtoH (Device -> Pageable)"
TRAIN = "train.py(12): step"


def a_step(number: int, *around: str, sync: str = "cudaStreamSynchronize", copy: str = "") -> Events:
    """A kernel of 5 ms, 1 ms after whose launch the host waits for it within functions and operators; then another."""
    start, id_ = number * STEP_MS, 10 * number
    events = [step(number, start, STEP_MS), call(TRAIN, start, STEP_MS)]
    events += launched("gemm", start + 1, start + 1.01, 5.0, id_ + 1)
    for depth, name in enumerate(around):
        at, spent = start + 2 + 0.01 * depth, 4.2 - 0.02 * depth
        events.append(operator(name, at, spent) if "::" in name else call(name, at, spent))
    if copy:
        events += [runtime("cudaMemcpyAsync", start + 2.1, 3.95, id_ + 2), kernel(copy, start + 6.02, 0.02, id_ + 2)]
    events.append(runtime(sync, start + (6.06 if copy else 2.1), 0.04 if copy else 4.0, id_ + 3))
    return [*events, *launched("gemm", start + 8, start + 8.01, 1.5, id_ + 4)]


def asked(folder: Path, *around: str, **how: Any) -> list[list[str]]:
    """What is blamed as a read, what as a synchronisation, and what is told."""
    with foreign_run(folder, [one for number in range(4) for one in a_step(number, *around, **how)]) as run:
        reads, others = blocking_scalar_read(run).findings, device_synchronisation(run).findings
        blamed = {str(finding.blame) for finding in (*reads, *others)}
        assert blamed <= {"train.py:12"}
        waits = run.get(HostWaits)
        assert sum(line.typical_ms for line in waits.lines) == pytest.approx(4, abs=0.01)
        called = [[line.calls[0] for line in waits.of(kind)] for kind in ("read", "synchronisation", "told")]
        assert [len(reads), len(others)] == [len(one) for one in called[:2]]
        return called


@pytest.mark.parametrize(
    ("around", "how", "expected"),
    [
        (("aten::item", "aten::_local_scalar_dense"), {"copy": COPY}, "item"),
        (("aten::is_nonzero", "aten::item", "aten::_local_scalar_dense"), {"copy": COPY}, "bool"),
        (("aten::to", "aten::_to_copy", "aten::copy_"), {"copy": COPY}, "cpu"),
        (("torch/_tensor_str.py(600): _str", "aten::masked_select", "aten::nonzero"), {}, "print"),
    ],
)
def test_reads_belong_to_the_audit_of_reads(tmp_path: Path, around: tuple[str, ...], how: Any, expected: str) -> None:
    assert asked(tmp_path, *around, **how) == [[expected], [], []]


@pytest.mark.parametrize(
    ("around", "how", "expected"),
    [
        (("aten::index", "aten::nonzero"), {}, "mask"),
        (("aten::masked_select", "aten::nonzero"), {}, "masked_select"),
        (("aten::nonzero",), {"copy": COPY}, "nonzero"),
        (("aten::repeat_interleave", "aten::item", "aten::_local_scalar_dense"), {"copy": COPY}, "repeat_interleave"),
        (("aten::_unique2",), {}, "unique"),
        (("aten::to", "aten::_to_copy", "aten::copy_"), {"copy": "Memcpy HtoD (Pageable -> Device)"}, "copy"),
        (("torch/cuda/__init__.py(975): synchronize",), {"sync": "cudaDeviceSynchronize"}, "synchronize"),
        (("torchvision/ops.py(3): find", "fbgemm::permute", "aten::item"), {"copy": COPY}, "fbgemm::permute"),
    ],
)
def test_other_waits_are_found_by_what_asks_for_them(
    tmp_path: Path, around: tuple[str, ...], how: Any, expected: str
) -> None:
    assert asked(tmp_path, *around, **how) == [[], [expected], []]


@pytest.mark.parametrize(
    ("around", "how", "expected"),
    [
        (("torch/amp/grad_scaler.py(300): _maybe_opt_step", "aten::item"), {"copy": COPY}, "the gradient scaler"),
        (("torch/nn/utils/clip_grad.py(80): clip", "aten::is_nonzero"), {}, "clipping of gradients"),
        (("torch/optim/adam.py(80): step", "aten::item"), {"copy": COPY}, "an optimizer"),
        (("aten::empty",), {"sync": "cudaFree"}, "the allocator"),
    ],
)
def test_what_torch_waits_for_is_told_and_not_blamed(
    tmp_path: Path, around: tuple[str, ...], how: Any, expected: str
) -> None:
    assert asked(tmp_path, *around, **how) == [[], [], [expected]]


def test_the_gain_is_that_of_the_replay_and_the_fix_is_for_what_asked(tmp_path: Path) -> None:
    events = [one for number in range(4) for one in a_step(number, "aten::index", "aten::nonzero")]
    with foreign_run(tmp_path, events) as run:
        (finding,) = device_synchronisation(run).findings
    assert "Indexing by a mask makes the host wait once per step, 4.00 ms per step (40 %)" in finding.message
    assert "the host stops until all that was queued before is done" in finding.why
    assert "torch.where" in finding.fix.summary
    assert finding.gain.basis == "replay"
    assert finding.gain.step_ms == pytest.approx(3.4, abs=0.2)  # the device works 6.5 of each 10 ms
    (table,) = (one for one in finding.evidence if isinstance(one, Table))
    assert table.rows[0][-1] == pytest.approx(2.0, abs=0.02)  # idle from the end of the kernel to the next launch


def test_a_wait_in_which_the_device_has_enough_to_do_is_no_fault(tmp_path: Path) -> None:
    busy = [kernel("gemm", number * STEP_MS + 0.5, 9.9, 10 * number + 1, stream=9) for number in range(4)]
    events = [one for number in range(4) for one in a_step(number, "aten::nonzero")]
    with foreign_run(tmp_path, events + busy) as run:
        assert device_synchronisation(run).findings == ()


def test_a_recorded_synchronisation_on_a_gpu_is_deleted_and_on_a_cpu_named(tmp_path: Path) -> None:
    site = SiteCalls(site="train.py:2:main", call="torch.cuda.synchronize", count=1, us=900.0)
    source = {"train.py": "def main():\n    torch.cuda.synchronize()\n    step()\n"}
    steps = [make_busy_step(number, stalls=[site]) for number in range(20)]
    on_gpu = write_run(tmp_path / "gpu", steps=steps, sources=source, devices=[GPU])
    (finding,) = device_synchronisation(on_gpu).findings
    assert (str(finding.blame), finding.gain.step_ms) == ("train.py:2", pytest.approx(0.2))
    assert finding.fix.changes
    sized = SiteCalls(site="train.py:3:main", call="nonzero", count=9, us=900.0)
    on_cpu = write_run(tmp_path / "cpu", steps=make_steps(20, stalls=[site], reads=[sized]), sources=source)
    assert blocking_scalar_read(on_cpu).findings == ()
    named = "on a GPU nonzero waits at train.py:3, on a GPU synchronize waits at train.py:2"
    with pytest.raises(NothingToLookAt, match=rf"^Needs a CUDA device \({named}\)\.$"):
        device_synchronisation(on_cpu)


def test_a_read_that_was_recorded_and_lies_in_a_window_is_one_wait_with_a_replayed_gain(tmp_path: Path) -> None:
    def window(number: int) -> str | None:
        return "trace-1" if number < 4 else None

    read = SiteCalls(site="train.py:12:step", call="item", count=1, us=4000.0)
    steps = make_steps(40, window=window, reads=[read])
    for record in steps:
        record.started_ns = START_NS + record.step * 10_000_000
        record.total_us = 10_000.0
    around = ("aten::item", "aten::_local_scalar_dense")
    events = [one for number in range(4) for one in a_step(number, *around, copy=COPY)]
    at_line = [
        one | {"args": {"Call site": "train.py:12:step"}} if one["name"] == "aten::item" else one for one in events
    ]
    source = {"train.py": "def step():\n" + "    pass\n" * 20}
    run = write_run(tmp_path / "run", steps=steps, sources=source, traces=[at_line], devices=[GPU])
    (line,) = run.get(HostWaits).lines
    assert (line.count, len(line.ms), line.idle_ms) == (1, 36, pytest.approx(2.0, abs=0.1))
    (finding,) = blocking_scalar_read(run).findings
    assert (str(finding.blame), finding.gain.basis) == ("train.py:12", "replay")
    assert device_synchronisation(run).findings == ()


def test_without_a_device_in_the_trace_it_is_not_applicable(tmp_path: Path) -> None:
    events = [step(1, 0.0, 5.0), operator("aten::nonzero", 1.0, 1.0)]
    with foreign_run(tmp_path, events) as run, pytest.raises(NotRecorded, match=r"ProfilerActivity\.CUDA"):
        device_synchronisation(run)
    with pytest.raises(NotRecorded, match="--trace-steps"):
        device_synchronisation(write_run(tmp_path / "run", steps=make_steps(20), devices=[GPU]))


@has_real_traces
def test_a_read_at_the_end_of_a_trace_of_one_step_is_not_of_each() -> None:
    with real_run("tracelens__mi300__xdit_flux") as run:
        assert blocking_scalar_read(run).findings == ()


@pytest.mark.skipif(not REAL_TRACES.exists(), reason=f"needs the traces in {REAL_TRACES}")
@pytest.mark.parametrize("path", sorted(REAL_TRACES.glob("*")), ids=lambda path: path.name[:40])
def test_in_real_traces_each_nanosecond_of_waiting_is_counted_once(path: Path) -> None:
    with real_run(path.name) as run:
        if run.get(TimeUse).device is None:
            pytest.skip("no device was recorded")
        window, waits = run.get(TimeUse).window, run.get(HostWaits)
        found = waits_in(window)
    trace, (start, end) = window.trace, (window.steps[0][0], window.steps[-1][1])
    events = np.array([event for wait in found for event in wait.events], int)
    spans = trace.start_ns[events].clip(start, end), trace.end_ns[events].clip(start, end)
    covered_ns = overlap_ns(union(*spans), *window.bounds)
    assert sum(wait.waited_ns for wait in found) == covered_ns
    total_ms = sum(sum(line.ms) for line in waits.lines)
    told_ns = sum(wait.waited_ns for wait in before_the_end(window, found))
    assert total_ms == pytest.approx(told_ns / 1e6, abs=1e-6)
    assert told_ns == covered_ns or len(window.steps) == 1
    synchronizes = np.flatnonzero([bool(SYNCHRONIZE.match(text)) for text in trace.texts])
    calls = trace.is_of(*LAUNCHES) & np.isin(trace.name_code, synchronizes) & (trace.start_ns < end)
    calls &= (trace.end_ns > start) & np.isin(trace.lane, list(window.paths.threads))
    assert set(np.flatnonzero(calls).tolist()) <= set(events.tolist())
