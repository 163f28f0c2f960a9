"""out_of_memory: tells true shortage from free memory in pieces, and which line filled the device."""

from pathlib import Path
from typing import Any

import pytest

from efprof.artifacts.events import OutOfMemory, StepInterrupted
from efprof.artifacts.steps import STEPS_FILE
from efprof.audits.out_of_memory import out_of_memory
from efprof.facts.allocator.settings import AllocatorSettings
from efprof.facts.run.run import Run
from efprof.model import (
    ConfigurationValue,
    EnvironmentVariable,
    Finding,
    MemoryMap,
    NothingToLookAt,
    NotRecorded,
    ThinEvidence,
)
from efprof.units import MIB
from tests.audits.test_fragmented_reserve import CACHE, OUTPUT, TRAIN, Program, beside, run_of
from tests.facts.peak.test_peak_composition import BEFORE, MODEL, STEP, stacked_blocks
from tests.support.builders import GPU, make_step, make_steps, write_run


def in_pieces() -> Program:
    """Each of 16 segments keeps 16 of its 30 MiB; the 14 MiB beside them serve no request for 90 MiB."""
    program = Program(AllocatorSettings(), capacity=512 * MIB)
    outputs = [program.at(OUTPUT).malloc(30 * MIB) for _ in range(16)]
    for output in outputs:
        program.free(output)
        program.at(CACHE).malloc(16 * MIB)
    program.at(OUTPUT).attempt(90 * MIB)
    assert program.entries[-1].action == "oom"
    return program


def truly_short() -> Program:
    program = Program(AllocatorSettings(), capacity=512 * MIB)
    for _ in range(12):
        program.at(CACHE).malloc(40 * MIB)
    program.at(OUTPUT).attempt(64 * MIB)
    return program


def only_finding(run: Run) -> Finding:
    (finding,) = out_of_memory(run).findings
    return finding


def test_truly_short_memory_blames_the_request_and_halves_the_micro_batch(tmp_path: Path) -> None:
    finding = only_finding(run_of(tmp_path / "run", truly_short(), ended="out_of_memory"))
    assert str(finding.blame) == f"train.py:{OUTPUT}"
    assert finding.severity == "high"
    assert finding.message == "Device 0 could not give 64.0 MiB: of 480 MiB reserved 0 B were free."
    assert finding.why == (
        "Memory was short, not fragmented: the largest free piece was 0 B. The driver had 32.0 MiB. "
        f"train.py:{CACHE} held 480 MiB (100 %)."
    )
    assert finding.fix.applicability == "manual"
    assert "32.0 MiB were missing" in finding.fix.summary
    assert "Take 8 samples per micro-batch instead of 16, and 2 of them per step." in finding.fix.summary
    assert finding.gain.peak_bytes == pytest.approx(480 * MIB - 544 * MIB / 2, rel=0.01)
    assert finding.gain.basis == "model"
    (filled,) = [one for one in finding.evidence if isinstance(one, MemoryMap)]
    assert (filled.bars[0].label, filled.bars[0].num_bytes) == (f"train.py:{CACHE}", 480 * MIB)
    assert "No allocator setting that was tried would have served the request" in finding.fix.summary


def test_free_memory_in_pieces_is_told_with_the_setting_that_survives_and_the_batch_beside_it(tmp_path: Path) -> None:
    finding = only_finding(run_of(tmp_path / "run", in_pieces(), ended="out_of_memory"))
    assert finding.headline == "Out of memory: free memory lies in pieces"
    assert finding.why.startswith("Memory was fragmented: ")
    (change,) = finding.fix.changes
    assert isinstance(change, EnvironmentVariable)
    assert change.new == "expandable_segments:True"
    fix = only_finding(run_of(tmp_path / "second", in_pieces(), configuration=CONFIGURATION)).fix
    assert fix.applicability == "safe"
    assert "Should that not be enough: Set `training.batch_size` to 8 (now 16)" in fix.summary


def test_a_program_that_got_all_it_asked_for_is_passed(tmp_path: Path) -> None:
    program = Program(AllocatorSettings(), capacity=512 * MIB)
    program.at(OUTPUT).malloc(40 * MIB)
    examination = out_of_memory(run_of(tmp_path / "run", program))
    assert examination.findings == ()
    assert examination.looked_at == "1 requests on 1 device"


CONFIGURATION = {"training.batch_size": "16", "training.accumulation": "1", "model.gradient_checkpointing": "false"}
SMALLER = (
    ConfigurationValue(name="training.batch_size", old="16", new="8"),
    ConfigurationValue(name="training.accumulation", old="1", new="2"),
)


def test_the_fix_is_computed_in_the_users_own_keys(tmp_path: Path) -> None:
    fix = only_finding(run_of(tmp_path / "run", truly_short(), configuration=CONFIGURATION)).fix
    assert fix.changes == SMALLER
    assert fix.applicability == "review"
    assert fix.summary.startswith(
        "Set `training.batch_size` to 8 (now 16) and `training.accumulation` to 2 (now 1): a step keeps its 16 samples."
    )
    assert "set `model.gradient_checkpointing` to true (now false)" in fix.summary


def ended(folder: Path, *, allocated_mib: int = 900, stage: str = "forward", **fields: Any) -> Run:
    """On a CPU: 100 MiB are kept from step to step, a request for 200 MiB fails."""
    defaults: dict[str, Any] = {
        "steps": make_steps(10, allocated_bytes=[size * MIB for size in (100, 500, 500, 120, 100)]),
        "configuration": CONFIGURATION,
        "site": f"train.py:{OUTPUT}:train",
        "requested_bytes": 200 * MIB,
    }
    fields = {**defaults, **fields}
    events = [
        StepInterrupted(at_ns=1, step=10, stage=stage, allocated_bytes=allocated_mib * MIB, reserved_bytes=0),
        OutOfMemory(
            at_ns=1,
            step=10,
            message="",
            site=fields.pop("site"),
            requested_bytes=fields.pop("requested_bytes"),
            is_for_tensor=fields.pop("is_for_tensor", True),
        ),
    ]
    return write_run(folder, events=events, ended="out_of_memory", **{"sources": {"train.py": TRAIN}, **fields})


def test_without_a_snapshot_the_events_tell_the_post_mortem_and_the_fix_is_as_exact(tmp_path: Path) -> None:
    finding = only_finding(ended(tmp_path / "run"))
    assert str(finding.blame) == f"train.py:{OUTPUT}"
    assert finding.severity == "high"
    assert finding.message == ("A request for 200 MiB failed in the forward stage of step 10, with 900 MiB in use.")
    assert finding.fix.changes == SMALLER
    assert finding.gain.peak_bytes == (900 - 100 - 1000 // 2) * MIB


def test_what_filled_memory_is_told_where_a_window_shows_it(tmp_path: Path) -> None:
    blocks = stacked_blocks()
    steps = [make_step(number) for number in range(STEP)]
    steps.append(make_step(STEP, window="trace-1", allocated_bytes=[BEFORE]))
    sources = {"model.py": MODEL, "train.py": TRAIN}
    run = ended(tmp_path / "run", steps=steps, allocations=[blocks.events], sources=sources, site=None)
    finding = only_finding(run)
    assert str(finding.blame) == "model.py:10"
    known = "Of the recorded peak of 147 MiB, 100 MiB were there before the step. 46.0 MiB (31 %) were activations"
    assert finding.why.startswith(known)
    assert any(isinstance(one, MemoryMap) for one in finding.evidence)


def test_where_the_steps_tell_no_batch_it_is_to_be_smaller_and_no_gain_claimed(tmp_path: Path) -> None:
    run = ended(tmp_path / "host", configuration={})
    (run.rank_folder / STEPS_FILE).unlink()
    assert "Take smaller micro-batches" in only_finding(run).fix.summary
    foreign = run_of(tmp_path / "foreign", truly_short())
    (foreign.rank_folder / STEPS_FILE).unlink()
    finding = only_finding(foreign)
    assert "Take smaller micro-batches" in finding.fix.summary
    assert finding.gain.peak_bytes is None


def test_growth_and_too_large_a_request_and_what_the_optimizer_lacks_are_no_matters_of_the_batch(
    tmp_path: Path,
) -> None:
    steps = [make_step(step, allocated_bytes=[(100 + 20 * step) * MIB] * 5) for step in range(40)]
    unknown = only_finding(ended(tmp_path / "unknown", steps=steps)).fix
    assert unknown.changes == ()
    assert unknown.summary == (
        "Memory grew by 20.0 MiB per step until it was full: find what keeps it, as the other findings tell. "
        "A smaller batch only puts off the end."
    )
    fix = only_finding(ended(tmp_path / "second", requested_bytes=1 << 50)).fix
    assert fix.summary.startswith("Look at the sizes on that line")
    assert fix.changes == ()
    fix = only_finding(ended(tmp_path / "third", stage="optimizer")).fix
    assert "`foreach=False`" in fix.summary
    assert fix.changes == ()


def test_a_batch_of_one_is_checkpointed_where_it_can_be_and_never_made_smaller(tmp_path: Path) -> None:
    steps = make_steps(10, allocated_bytes=[100 * MIB] * 5, samples=1)
    configuration = {"batch_size": "1", "gradient_checkpointing": "false"}
    fix = only_finding(ended(tmp_path / "run", steps=steps, configuration=configuration)).fix
    assert fix.changes == (ConfigurationValue(name="gradient_checkpointing", old="false", new="true"),)
    fix = only_finding(ended(tmp_path / "second", steps=steps, configuration={"batch_size": "1"})).fix
    assert fix.summary.startswith("Even single samples would not fit.")
    assert fix.summary.endswith("Checkpoint the forward pass, take a smaller model, or compute in lower precision.")


def nameless() -> Program:
    """Device memory is short, and no stack names a line."""
    program = Program(AllocatorSettings(), capacity=512 * MIB)
    program.at(None).malloc(480 * MIB)
    program.attempt(64 * MIB)
    return program


def test_without_a_line_of_the_users_or_a_snapshot_it_is_not_applicable(tmp_path: Path) -> None:
    with pytest.raises(ThinEvidence, match=r"no stack of device 0 in rank0/memory-1\.pickle names a line"):
        out_of_memory(beside(run_of(tmp_path, nameless()), nameless()))
    with pytest.raises(ThinEvidence, match="no line of yours"):
        out_of_memory(ended(tmp_path / "second", site=None))
    with pytest.raises(NotRecorded, match=r"memory-<n>\.pickle is missing"):
        out_of_memory(write_run(tmp_path / "third", steps=make_steps(10), devices=[GPU]))
    with pytest.raises(NothingToLookAt, match=r"^Needs a CUDA device\.$"):
        out_of_memory(write_run(tmp_path / "on a CPU", steps=make_steps(10)))


def test_free_memory_of_another_pool_is_no_piece_that_would_have_served(tmp_path: Path) -> None:
    """Small blocks and large ones share no segments: a request for 2 MiB is not in pieces for what is free in small."""
    program = Program(AllocatorSettings(), capacity=512 * MIB)
    small = [program.at(OUTPUT).malloc(MIB // 2) for _ in range(16)]
    for _ in range(12):
        program.at(CACHE).malloc(40 * MIB)
    program.at(CACHE).malloc(24 * MIB)
    for block in small[::2]:
        program.free(block)
    program.at(OUTPUT).attempt(2 * MIB)
    finding = only_finding(run_of(tmp_path / "run", program, ended="out_of_memory"))
    assert finding.headline == "Out of memory"
    assert finding.message.endswith("of 512 MiB reserved 4.00 MiB were free.")
    assert finding.why.startswith(
        "Memory was short, not fragmented: the largest free piece was 0 B. 4.00 MiB were for other sizes, streams or "
        "pools. The driver had 0 B."
    )
    assert "2.00 MiB were missing" in finding.fix.summary
