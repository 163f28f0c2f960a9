"""`--host-memory`: a file that memray itself reads, whatever becomes of the program."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from efprof.recorder.session.options import parse_options
from tests.recorder.conftest import Begin
from tests.recorder.recording import EFPROF, Recorded, environment_of, record_here

memray = pytest.importorskip("memray", reason="needs memray")

TRAINING = """
import os, signal
import torch

def hoard(size):
    return torch.zeros(size, dtype=torch.uint8)

class Halve(torch.optim.Optimizer):
    def step(self):
        with torch.no_grad():
            self.param_groups[0]["params"][0].mul_(0.5)

weight = torch.ones(1, requires_grad=True)
optimizer = Halve([weight], {})
kept = []
for step in range(12):
    weight.sum().backward()
    optimizer.step()
    kept.append(hoard(5_000_000))
os.kill(os.getpid(), signal.SIGKILL)
"""


def bytes_by_function(file: Path) -> dict[str, int]:
    """What was allocated at the peak, by the function that allocated it."""
    found: dict[str, int] = {}
    with memray.FileReader(file) as reader:
        for record in reader.get_high_watermark_allocation_records(merge_threads=True):
            stack = record.stack_trace(1)
            function = stack[0][0] if stack else ""
            found[function] = found.get(function, 0) + record.size
    return found


def test_memray_reads_what_a_program_allocated_until_it_was_killed(
    begin: Begin,
) -> None:
    child = begin(TRAINING, host_memory=True)
    assert child.wait() == -signal.SIGKILL
    recorded = Recorded(folder=child.folder)
    assert bytes_by_function(recorded.rank / "host.memray")["hoard"] >= 15_000_000
    assert list(recorded.folder.glob("host-*")) == []
    assert len(recorded.steps) >= 11, "the one that was killed in may be missing"


def test_a_program_that_never_trains_leaves_no_file(tmp_path: Path) -> None:
    assert list(record_here(tmp_path / "run", lambda: None, host_memory=True).folder.rglob("*.memray")) == []


def test_memray_is_imported_by_no_other_recording(begin: Begin) -> None:
    text = TRAINING.rpartition("os.kill")[0] + "import sys; print('memray' in sys.modules)"
    child = begin(text)
    assert child.wait() == 0, child.errors
    assert child.output == "False\n"


def test_a_program_that_fails_before_its_first_step_leaves_its_file_beside_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        torch.zeros(20_000_000)
        monkeypatch.setattr(sys, "last_value", MemoryError(), raising=False)  # as Python leaves what ended it

    (file,) = record_here(tmp_path / "run", fail, host_memory=True).folder.glob("host-*.memray")
    assert bytes_by_function(file)["fail"] >= 80_000_000


def refused(folder: Path, *words: str) -> str:
    """What `efprof record` says as it refuses; it starts and writes nothing."""
    before = sorted(folder.iterdir())
    environment = environment_of(folder / "home", {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"})
    words = (*EFPROF, "record", *words, "--", "touch", "started")
    done = subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert sorted(folder.iterdir()) == before
    return done.stderr


def test_memray_that_is_not_installed_is_named_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['memray'] = None")
    said = "efprof: --host-memory needs memray, which is not installed: run 'pip install memray'.\n"
    assert refused(tmp_path, "--host-memory") == said


def test_the_windows_of_the_cuda_allocator_stay_beside_it() -> None:
    options, default = parse_options(host_memory=True), parse_options()
    assert (options.trace_steps, options.triggers) == ((), ())
    assert options.memory_steps == default.memory_steps != ()


@pytest.mark.parametrize("more", [(), ("--windows", "none")], ids=" ".join)
def test_a_trace_that_is_asked_for_by_its_steps_is_refused_beside_it(more: tuple[str, ...], tmp_path: Path) -> None:
    assert refused(tmp_path, "--host-memory", "--trace-steps", "5:7", *more) == (
        "efprof: --trace-steps and --host-memory both need Python's one profile hook; record twice, once with each.\n"
    )
