"""out_of_memory: tells true shortage from free memory in pieces, and which line filled the device."""

from pathlib import Path

import pytest

from efprof.audits.out_of_memory import out_of_memory
from efprof.facts.allocator.settings import AllocatorSettings
from efprof.facts.run import Run
from efprof.model import EnvironmentVariable, Finding, MemoryMap, NotRecorded
from efprof.units import MIB
from tests.audits.test_fragmented_reserve import CACHE, OUTPUT, Program, run_of
from tests.builders import make_steps, write_run


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


def test_true_shortage_blames_the_request_and_names_the_line_that_filled_the_device(tmp_path: Path) -> None:
    finding = only_finding(run_of(tmp_path / "run", truly_short()))
    assert str(finding.blame) == f"train.py:{OUTPUT}"
    assert finding.severity == "high"
    assert finding.message == (
        "Device 0 could not give 64.0 MiB: of 480 MiB reserved 0 B were free, the largest piece 0 B, and the driver "
        f"had 32.0 MiB; memory was truly short. Most was held by train.py:{CACHE}: 480 MiB (100 %)"
    )
    assert finding.fix.applicability == "manual"
    assert "it is 32.0 MiB short at that moment" in finding.fix.summary
    assert finding.gain.peak_bytes is None
    (filled,) = [one for one in finding.evidence if isinstance(one, MemoryMap)]
    assert (filled.bars[0].label, filled.bars[0].num_bytes) == (f"train.py:{CACHE}", 480 * MIB)


def test_free_memory_in_pieces_is_told_from_shortage_with_the_setting_that_survives(tmp_path: Path) -> None:
    finding = only_finding(run_of(tmp_path / "run", in_pieces()))
    assert finding.headline == "Out of memory: free memory lies in pieces"
    assert "memory was there, but in pieces" in finding.message
    (change,) = finding.fix.changes
    assert isinstance(change, EnvironmentVariable)
    assert change.new == "expandable_segments:True"


def test_a_program_that_got_all_it_asked_for_is_passed(tmp_path: Path) -> None:
    program = Program(AllocatorSettings(), capacity=512 * MIB)
    program.at(OUTPUT).malloc(40 * MIB)
    examination = out_of_memory(run_of(tmp_path / "run", program))
    assert examination.findings == ()
    assert examination.looked_at == "1 requests on 1 device"


def test_a_run_without_a_snapshot_names_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match=r"memory-<n>\.pickle is missing"):
        out_of_memory(write_run(tmp_path / "run", steps=make_steps(10)))
