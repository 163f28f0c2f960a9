"""Calls that make a step wait and that a library makes: the line that led to them, and the library's frames."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim.optimizer import _get_value

from efprof.artifacts.steps import SiteCalls
from efprof.recorder.session import sites
from tests.recorder.recording import line_of, record_here
from tests.recorder.training import make_weight
from tests.simulated_cuda.cuda import SimulatedCuda

HERE = Path(__file__)
LIBRARY = """\
import gc


class Engine:
    def log(self, loss):
        self.describe(loss)

    def describe(self, loss):
        f"{loss:.3f}"

    def collect(self):
        gc.collect(0)
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package that is installed for as long as the test runs."""
    package = tmp_path / "site-packages" / "engines"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(package.parent)
    sites._library_folders.cache_clear()
    yield importlib.import_module("engines")
    del sys.modules["engines"]
    sites._library_folders.cache_clear()


def calls_of(folder: Path, call: Callable[[torch.Tensor], object]) -> list[SiteCalls]:
    """What one of two training steps, which call this with their loss, had of reads and stalls."""

    def train() -> None:
        weight, optimizer = make_weight(2)
        for _ in range(2):
            loss = weight.sum()
            loss.backward()
            call(loss.detach())
            optimizer.step()

    step = record_here(folder / "run", train).steps[1]
    return [*step.reads, *step.stalls]


def test_a_read_of_a_library_has_its_frames_and_is_apart_from_the_line_s_own(
    library: ModuleType, tmp_path: Path
) -> None:
    engine = library.Engine()

    def log(loss: torch.Tensor) -> None:
        engine.log(loss), loss.item()  # both

    site = f"tests/recorder/collectors/test_library_calls.py:{line_of(HERE, 'both')}:{log.__qualname__}"
    frames = ("engines/__init__.py:9:Engine.describe", "engines/__init__.py:6:Engine.log")
    found = [(one.site, one.call, one.count, one.library) for one in calls_of(tmp_path, log)]
    assert found == [(site, "item", 1, frames), (site, "item", 1, ())]


def test_a_stall_of_a_library_has_its_frame(library: ModuleType, tmp_path: Path) -> None:
    (stall,) = calls_of(tmp_path, lambda _: library.Engine().collect())
    assert (stall.call, stall.library) == ("gc.collect", ("engines/__init__.py:12:Engine.collect",))


def test_what_python_itself_is_passed_through_by_is_no_library(tmp_path: Path) -> None:
    from statistics import fsum

    (read,) = calls_of(tmp_path, lambda loss: fsum([loss]))
    assert (read.call, read.library) == ("float", ())


def test_a_stall_within_torch_is_torch_s_own_as_the_rate_limiter_of_fsdp(tmp_path: Path) -> None:
    from torch.distributed.fsdp._runtime_utils import _unshard

    with SimulatedCuda().in_place():
        event = torch.cuda.Event()
        limiter = SimpleNamespace(dequeue_if_needed=lambda: event)
        device = SimpleNamespace(stream=torch.cuda.stream)
        state = SimpleNamespace(limit_all_gathers=True, _free_event_queue=limiter, _device_handle=device)
        handle = SimpleNamespace(pre_unshard=lambda: False, unshard=lambda: None, post_unshard=lambda: None)
        stream = torch.cuda.current_stream()
        (stall,) = calls_of(tmp_path, lambda _: _unshard(state, handle, stream, stream))
    file, _, function = stall.library[0].split(":")
    assert (stall.call, len(stall.library)) == ("torch.cuda.Event.synchronize", 1)
    assert (file, function) == ("torch/distributed/fsdp/_runtime_utils.py", "_unshard")


def test_of_torch_s_own_reads_those_count_that_a_caller_asks_for_or_that_moved_state_causes(tmp_path: Path) -> None:
    with SimulatedCuda().in_place():
        scaler, count = torch.amp.GradScaler("cuda"), torch.ones((), device="cuda")
        scaler.scale(count)
        (asked,) = calls_of(tmp_path / "asked", lambda _: scaler.get_scale())
        (moved,) = calls_of(tmp_path / "moved", lambda _: _get_value(count))
        none = calls_of(tmp_path / "by_design", lambda _: _get_value(torch.ones(())))
    assert [one.library[0].rpartition(":")[2] for one in (asked, moved)] == ["GradScaler.get_scale", "_get_value"]
    assert none == []


class Estimating(torch.optim.SGD):
    """Reads a value of each parameter in its step, as optimizers do that find their own learning rate."""

    def step(self, closure: Any = None) -> None:
        self.param_groups[0]["params"][0].detach().flatten()[0].item()  # estimates
        super().step(closure)


def test_an_optimizer_that_reads_from_the_device_makes_the_host_wait(tmp_path: Path) -> None:
    def train(device: str) -> None:
        weight = torch.ones(2, device=device, requires_grad=True)
        optimizer = Estimating([weight], lr=0.1)
        for _ in range(2):
            weight.sum().backward()
            optimizer.step()

    with SimulatedCuda().in_place():
        (read,) = record_here(tmp_path / "cuda", lambda: train("cuda")).steps[1].reads
    assert f":{line_of(HERE, 'estimates')}:" in read.site
    assert record_here(tmp_path / "cpu", lambda: train("cpu")).steps[1].reads == [], "that waits for nothing"
