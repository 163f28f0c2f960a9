"""fragmented_reserve: fires on the line whose tensors hold the segments, is silent where no setting helps."""

from pathlib import Path
from typing import Any

import pytest

from efprof.audits.fragmented_reserve import fragmented_reserve
from efprof.facts.allocator.settings import AllocatorSettings
from efprof.facts.device.device_memory import DeviceMemory
from efprof.facts.run.run import Run, open_run
from efprof.model import EnvironmentVariable, Finding, NothingToLookAt, NotRecorded, ThinEvidence
from efprof.units import MIB
from tests.facts.allocator.recording import Recording
from tests.support.builders import GPU, make_steps, write_run, write_snapshot

TRAIN = """\
def train(model):
    for batch in loader:
        output = model(batch)
        cache.append(output.mean(0))
        output.sum().backward()
"""
OUTPUT, CACHE = 3, 4


def frames_of(line: int, function: str = "train") -> list[dict[str, str | int]]:
    """A stack of the user's below torch's."""
    return [
        {"filename": "/venv/lib/python3.12/site-packages/torch/nn/module.py", "line": 1751, "name": "_call_impl"},
        {"filename": "/home/user/project/train.py", "line": line, "name": function},
        {"filename": "/home/user/project/train.py", "line": 99, "name": "<module>"},
    ]  # fmt: skip


class Program(Recording):
    """Notes which line asks."""

    def at(self, line: int | None) -> "Program":
        """What follows is asked for by this line; None is a thread without Python."""
        self._frames = None if line is None else frames_of(line)
        return self


def fragmenting(settings: AllocatorSettings, *, line: int | None = CACHE) -> Program:
    """Each batch is larger than the one before, and leaves something in half of its memory."""
    program = Program(settings)
    for number in range(12):
        program.at(OUTPUT if line else None)
        output = program.malloc((40 + 4 * number) * MIB)
        program.free(output)
        program.at(line).malloc((21 + 2 * number) * MIB)
    return program


def run_of(folder: Path, program: Program, **fields: Any) -> Run:
    return write_run(
        folder,
        steps=make_steps(10),
        sources={"train.py": TRAIN},
        snapshots=[program.snapshot()],
        devices=[GPU],
        memory_source="CUDA caching allocator",
        **fields,
    )


def only_finding(run: Run) -> Finding:
    (finding,) = fragmented_reserve(run).findings
    return finding


def test_it_blames_the_line_whose_tensors_hold_the_segments_and_sets_what_reserves_least(tmp_path: Path) -> None:
    program = fragmenting(AllocatorSettings())
    finding = only_finding(run_of(tmp_path / "run", program))
    (change,) = finding.fix.changes
    assert isinstance(change, EnvironmentVariable)
    assert (change.name, change.new) == ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    measured = fragmenting(AllocatorSettings(expandable_segments=True)).allocator.peak_reserved
    assert finding.gain.peak_bytes == program.allocator.peak_reserved - measured
    assert finding.gain.basis == "replay"
    assert str(finding.blame) == f"train.py:{CACHE}"
    assert finding.blame.text == "cache.append(output.mean(0))"


def test_it_is_silent_where_the_setting_is_on_already_or_every_batch_is_alike(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", fragmenting(AllocatorSettings(expandable_segments=True)))
    examination = fragmented_reserve(run)
    assert examination.findings == ()
    assert examination.looked_at.startswith("24 requests replayed under ")
    program = Program(AllocatorSettings())
    for _ in range(12):
        output = program.at(OUTPUT).malloc(40 * MIB)
        program.free(output)
        program.at(CACHE).malloc(2048)
    assert fragmented_reserve(run_of(tmp_path / "second", program)).findings == ()


def test_whole_free_segments_are_the_cache_and_no_fragments(tmp_path: Path) -> None:
    program = Program(AllocatorSettings())
    for number in range(12):
        program.free(program.at(OUTPUT).malloc((40 + 4 * number) * MIB))
    run = run_of(tmp_path / "run", program)
    (device,) = run.get(DeviceMemory).devices
    assert device.best is not None
    assert device.peak.composition.releasable_bytes > 400 * MIB
    assert fragmented_reserve(run).findings == ()


def test_without_a_line_of_the_user_it_names_the_command_that_tells_the_setting(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", fragmenting(AllocatorSettings(), line=None))
    with pytest.raises(ThinEvidence, match="efprof allocator what-if"):
        fragmented_reserve(run)


def beside(run: Run, program: Program) -> Run:
    """The same run with a second rank, whose device this program used."""
    (run.folder / "rank1").mkdir()
    write_snapshot(run.folder / "rank1" / "memory-1.pickle", program.snapshot())
    return open_run(run.folder)


def test_a_rank_without_a_line_of_the_user_hides_no_finding_of_another(tmp_path: Path) -> None:
    nameless = fragmenting(AllocatorSettings(), line=None)
    for name, programs in {
        "first": (nameless, fragmenting(AllocatorSettings())),
        "last": (fragmenting(AllocatorSettings()), nameless),
    }.items():
        examination = fragmented_reserve(beside(run_of(tmp_path / name, programs[0]), programs[1]))
        assert [str(finding.blame) for finding in examination.findings] == [f"train.py:{CACHE}"]
        assert "/memory-1.pickle names a line of yours" in examination.looked_at


def test_a_run_without_a_snapshot_names_what_it_needs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=make_steps(10), devices=[GPU])
    with pytest.raises(NotRecorded, match=r"memory-<n>\.pickle is missing"):
        fragmented_reserve(run)
    with pytest.raises(NothingToLookAt, match=r"^Needs a CUDA device\.$"):
        fragmented_reserve(write_run(tmp_path / "on a CPU", steps=make_steps(10)))
