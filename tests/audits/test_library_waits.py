"""What a library's function waits for is told with the library, and edits no line that does not make the call."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from efprof.artifacts.foreign import as_run
from efprof.artifacts.steps import SiteCalls
from efprof.audits.blocking_scalar_read import blocking_scalar_read
from efprof.audits.cache_flush_in_loop import cache_flush_in_loop
from efprof.audits.debug_mode import debug_mode
from efprof.audits.device_synchronisation import device_synchronisation
from efprof.facts.allocator.settings import AllocatorSettings
from efprof.facts.run.run import Run, open_run
from efprof.facts.steps.step_times import stall_lines
from efprof.model import AuditResult, CodeEdit, Finding, NotRecorded
from efprof.report.tables import stall_table
from efprof.units import MIB
from tests.audits.test_device_synchronisation import COPY, a_step
from tests.audits.test_fragmented_reserve import OUTPUT, Program
from tests.support.builders import GPU, make_steps, write_run, write_snapshot
from tests.support.device_traces import foreign_run

FLUSH, WAIT, COLLECT = "torch.cuda.empty_cache", "torch.cuda.Event.synchronize", "gc.collect"
STALLS = (FLUSH, "torch.cuda.synchronize", WAIT, COLLECT, "anomaly detection", "torch.profiler")
LIMITER = ("torch/distributed/fsdp/_runtime_utils.py:303:_unshard",)
TRAINER = ("transformers/trainer.py:1922:Trainer._run_epoch", "transformers/trainer.py:1660:Trainer._inner")
ENGINE = ("engines/run.py:12:Engine.step",)
LINES = (
    "trainer.train()", "engine.step()", "loss = model(x)", "loss.backward()", "torch.cuda.empty_cache()",
    "torch.cuda.synchronize()", "gc.collect()", "total += loss.item()", "history.append(evaluate(model))",
    "torch.autograd.set_detect_anomaly(True)", "with torch.profiler.profile():",
)  # fmt: skip
NAMES = {"anomaly detection": "set_detect_anomaly", "torch.profiler": "profile"}


def run_of(folder: Path, *stalls: SiteCalls, reads: tuple[SiteCalls, ...] = (), code: str = LINES[0]) -> Run:
    """Each step made these calls at the second line, which has this code."""
    text = f"def train():\n    {code}\n" + "        pass\n" * code.endswith(":") + "    done()\n"
    steps = make_steps(30, stalls=list(stalls), reads=list(reads))
    return write_run(
        folder, steps=steps, sources={"train.py": text}, devices=[GPU], memory_source="CUDA caching allocator"
    )


def called(call: str, library: tuple[str, ...] = ()) -> SiteCalls:
    return SiteCalls(site="train.py:2:train", call=call, count=1, us=3_000.0, library=library)


def all_findings(run: Run) -> list[Finding]:
    found = list[Finding]()
    for audit in (blocking_scalar_read, device_synchronisation, cache_flush_in_loop, debug_mode):
        with suppress(NotRecorded):  # no wait and no trace
            found += audit(run).findings
    return found


def edits_of(run: Run) -> list[CodeEdit]:
    return [one for found in all_findings(run) for one in found.fix.changes if isinstance(one, CodeEdit)]


@pytest.mark.parametrize("code", LINES)
def test_no_edit_is_of_a_line_that_does_not_make_the_call(code: str, tmp_path: Path) -> None:
    for number, call in enumerate(STALLS):
        run = run_of(tmp_path / f"own-{number}", called(call), code=code)
        assert all_findings(run), call
        assert {edit.old.strip() for edit in edits_of(run)} <= {code}
        names_it = NAMES.get(call, call.rpartition(".")[2]) in code
        assert names_it or edits_of(run) == [], call
        assert edits_of(run_of(tmp_path / f"library-{number}", called(call, ENGINE), code=code)) == [], call
    assert edits_of(run_of(tmp_path / "read", reads=(called("item", ENGINE),), code=code)) == []


def test_a_line_s_own_read_and_that_of_a_library_it_calls_are_two_findings(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", reads=(called("item"), called("bool", TRAINER)))
    own, library = sorted(blocking_scalar_read(run).findings, key=lambda finding: finding.within)
    assert str(own.blame) == str(library.blame) == "train.py:2"
    assert (own.within, own.headline) == ("", "Tensor values are read in every step")
    assert library.headline == "Tensor values are read in every step, in transformers/trainer.py:1922"
    assert library.message.startswith("Tensor values are read once per step by `Trainer._run_epoch` of transformers")
    assert library.fix.summary.startswith("Set `logging_nan_inf_filter=False` in `TrainingArguments`")
    result = AuditResult(audit_id="blocking_scalar_read", status="failed", reason="")
    assert result.key_of(own) != result.key_of(library)


def test_the_rate_limiter_of_fsdp_is_told_with_its_setting(tmp_path: Path) -> None:
    (finding,) = device_synchronisation(run_of(tmp_path / "run", called(WAIT, LIMITER))).findings
    assert finding.headline == "The host waits for the device, in torch/distributed/fsdp/_runtime_utils.py:303"
    assert finding.message.startswith("A synchronisation by `_unshard` of torch makes the host wait once per step")
    assert "`limit_all_gathers=False`" in finding.fix.summary


def test_garbage_that_a_library_collects_is_told_with_the_library(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", called(COLLECT, ENGINE))
    (finding,) = debug_mode(run).findings
    assert finding.headline == "The garbage collector runs in each step, in engines/run.py:12"
    assert "go to gc.collect by `Engine.step` of engines, at train.py:2" in finding.message
    assert finding.fix.summary.startswith("`Engine.step` of engines makes the call")
    assert stall_table(stall_lines(run)).rows[0][0] == "`gc.collect in engines/run.py:12:Engine.step`"


def in_a_trace(folder: Path, audit: Callable[[Run], Any], *around: str, **how: Any) -> Finding:
    events = [one for number in range(4) for one in a_step(number, *around, **how)]
    with foreign_run(folder, events) as run:
        (finding,) = audit(run).findings
        return finding  # type: ignore[no-any-return]


def test_in_a_trace_the_functions_around_a_read_tell_the_library(tmp_path: Path) -> None:
    installed = "/venv/lib/python3.12/site-packages/transformers/trainer.py(1850): _run_epoch"
    torch_s = ("torch/_tensor.py(40): wrapped", "aten::is_nonzero", "aten::item")
    frames = ("transformers/trainer.py(1451): train", installed, *torch_s)
    finding = in_a_trace(tmp_path, blocking_scalar_read, *frames, copy=COPY)
    assert finding.headline == "Tensor values are read in every step, in transformers/trainer.py:1850"
    assert str(finding.blame) == "train.py:12"
    assert "`logging_nan_inf_filter=False`" in finding.fix.summary


def test_in_a_trace_an_operator_that_begins_the_forward_pass_is_within_the_same_functions(tmp_path: Path) -> None:
    frames = ("transformers/trainer.py(1850): _run_epoch", "aten::is_nonzero", "aten::item")
    events = [one for number in range(4) for one in a_step(number, *frames, copy=COPY)]
    numbered = [one | {"args": {"Sequence number": 7}} if one["name"] == "aten::is_nonzero" else one for one in events]
    with foreign_run(tmp_path, numbered) as run:
        (finding,) = blocking_scalar_read(run).findings
    assert finding.within == "_run_epoch"


def test_in_a_trace_a_library_s_copy_is_told_with_the_library_and_pinned_memory(tmp_path: Path) -> None:
    copied = "Memcpy HtoD (Pageable -> Device)"
    frames = ("accelerate/utils/operations.py(150): send_to_device", "aten::to", "aten::_to_copy", "aten::copy_")
    finding = in_a_trace(tmp_path, device_synchronisation, *frames, copy=copied)
    assert finding.message.startswith("A copy of pageable memory by `send_to_device` of accelerate")
    assert "pin_memory=True" in finding.fix.summary


def test_in_a_trace_a_read_of_the_user_s_own_function_is_no_library_s(tmp_path: Path) -> None:
    finding = in_a_trace(tmp_path, blocking_scalar_read, "contextlib.py(80): inner", "aten::item", copy=COPY)
    assert (finding.within, finding.headline) == ("", "Tensor values are read in every step")


def test_in_a_trace_the_rate_limiter_of_fsdp_is_told_with_its_setting(tmp_path: Path) -> None:
    frames = ("torch/nn/modules/module.py(1773): _call_impl", "torch/distributed/fsdp/_runtime_utils.py(270): _unshard",
    "FullyShardedDataParallel.rate_limiter", "torch/cuda/streams.py(231): synchronize")  # fmt: skip
    finding = in_a_trace(tmp_path, device_synchronisation, *frames, sync="cudaEventSynchronize")
    assert finding.headline == "The host waits for the device, in torch/distributed/fsdp/_runtime_utils.py:270"
    assert "`limit_all_gathers=False`" in finding.fix.summary


def test_a_snapshot_tells_which_library_emptied_the_cache(tmp_path: Path) -> None:
    program = Program(AllocatorSettings())
    for _ in range(5):
        program.free(program.at(OUTPUT).malloc(40 * MIB))
        program.empty_cache()
    snapshot = program.snapshot()
    trainer = {
        "filename": "/venv/lib/python3/site-packages/transformers/trainer.py",
        "line": 2097,
        "name": "training_step",
    }
    for entry in snapshot.device_traces[0]:
        if entry.frames and entry.frames[0]["name"] == "empty_cache":
            entry.frames = [entry.frames[0], trainer, *entry.frames[1:]]
    write_snapshot(path := tmp_path / "dump.pickle", snapshot)
    with as_run(path) as run_folder:
        (finding,) = cache_flush_in_loop(open_run(run_folder)).findings
    assert finding.headline == "The allocator's cache is emptied again and again, in transformers/trainer.py:2097"
    assert finding.fix.summary.startswith("Set `torch_empty_cache_steps=None`")
