"""A training command is run for some steps at one batch size, and its peak is read from what was recorded."""

import sys
from pathlib import Path

import pytest

from efprof.fit.measuring import measure_peak
from efprof.model import EfprofError

TRAINING = """
import sys
import torch

batch = int(sys.argv[1])
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    optimizer.zero_grad()
    model(torch.randn(batch, 64)).mean().backward()
    optimizer.step()
"""

MIB = 1024**2
ROOT = Path(__file__).parents[2]


def command_of(folder: Path, text: str) -> list[str]:
    (folder / "train.py").write_text(text)
    return [sys.executable, str(folder / "train.py"), "{batch}"]


@pytest.mark.long
def test_the_peak_of_an_endless_training_is_known_after_some_steps(tmp_path: Path) -> None:
    peak = measure_peak(command_of(tmp_path, TRAINING), 1024) or 0
    parameters, activation = (64 * 4096 + 4096 + 4096 + 1) * 4, 1024 * 4096 * 4
    # Two activations are alive at once, or three: tensors alone, not what else the process has in use.
    assert 2 * activation < peak - 2 * parameters < 3 * activation + 8 * MIB


def test_a_command_that_fails_is_told_by_what_it_said_last(tmp_path: Path) -> None:
    with pytest.raises(EfprofError, match="it said last: no such data set"):
        measure_peak(command_of(tmp_path, "raise SystemExit('no such data set')"), 2)


def test_a_command_that_cannot_be_started_is_told_as_the_recorder_tells_it() -> None:
    with pytest.raises(EfprofError, match=r"could not be recorded: .*no_such_program"):
        measure_peak(["no_such_program", "{batch}"], 2)


def test_memory_that_runs_out_is_no_error(tmp_path: Path) -> None:
    assert measure_peak(command_of(tmp_path, "import torch; torch.empty(1 << 50)"), 2) is None


ON_A_DEVICE = """
import sys
import torch

model = torch.nn.Linear(1024, 1024, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100):
    optimizer.zero_grad()
    model(torch.ones(int(sys.argv[1]), 1024, device="cuda")).mean().backward()
    optimizer.step()
    AFTER_STEP
"""


def on_a_device(folder: Path, after_step: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'tests' / 'simulated_cuda' / 'at_start'}:{ROOT}")
    return command_of(folder, ON_A_DEVICE.replace("AFTER_STEP", after_step))


@pytest.mark.long
def test_on_a_device_the_peak_is_what_its_allocator_had_reserved_also_within_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peak = measure_peak(on_a_device(tmp_path, "torch.cuda.empty_cache()", monkeypatch), 8192) or 0
    assert 64 * MIB < peak < 128 * MIB  # the batch and what it gives are 32 MiB each, freed before a step ends


VALIDATE = """torch.empty(200 * 2**20, dtype=torch.uint8, device="cuda")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()"""


@pytest.mark.long
def test_what_a_validation_takes_counts_though_the_program_resets_the_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (measure_peak(on_a_device(tmp_path, VALIDATE, monkeypatch), 2) or 0) > 200 * MIB


def test_a_size_that_fails_on_a_device_after_some_steps_has_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = on_a_device(tmp_path, "raise RuntimeError('cuDNN error: EXECUTION_FAILED')", monkeypatch)
    with pytest.raises(EfprofError, match="failed; it said last: RuntimeError: cuDNN error"):
        measure_peak(command, 2)
