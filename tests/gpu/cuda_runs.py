"""What the tests on a CUDA device share: when they run, where results go, how a history is read."""

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from efprof.artifacts.snapshot import Entry, read_snapshot
from tests.recorder.recording import Recorded, record_command
from tests.support.record_fixtures import keep_run

ROOT = Path(__file__).parents[2]

needs_cuda = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


@contextmanager
def synchronisation_is_an_error() -> Iterator[None]:
    """Within, whatever makes the host wait for the device raises, as far as torch sees it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that this mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def results_folder() -> Path:
    folder = Path(os.environ.get("OUT", ROOT / "reports" / "gpu"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def keep_fixture(recorded: Recorded, name: str) -> None:
    """Copy a run to the results, for tests on machines without a device."""
    keep_run(recorded.folder, results_folder() / "runs" / name)


def events_of(path: Path) -> list[Entry]:
    """The history in this snapshot of the one device that has any."""
    (events,) = [events for events in read_snapshot(path).device_traces if events]
    return events


def record_text(folder: Path, text: str, *options: str, environment: Mapping[str, str] | None = None) -> Recorded:
    """Record a script of this text."""
    script = folder / "train.py"
    script.write_text(text)
    return record_command(folder / "home", [sys.executable, str(script)], options=options, environment=environment)


TRAIN_PLAINLY = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for number in range(STEPS):
    inputs = torch.randn(64, 256, device="cuda")
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
"""
