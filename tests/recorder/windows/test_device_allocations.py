"""A device's allocations in a profiler window, from the event tree of a CPU whose allocations are said to be a GPU's.

As on CUDA, the nodes of backward have no Python around them: a device's run in a thread of their own.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from efprof.artifacts.allocations import AllocationEvent, read_allocations
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import LineWriter, RankFolder
from efprof.recorder.windows.allocation_rows import EVALUATE, CallSites, WindowEvents
from efprof.recorder.windows.profiled_window import watch_operators
from tests.recorder.recording import line_of

HERE = Path(__file__)
FEATURES = 50_000
OTHER_DEVICE_BYTES = 4 * 3_000
HOST_BYTES = 4 * 1_000

pytestmark = pytest.mark.filterwarnings("ignore:.*kineto.*:UserWarning")


@dataclass(slots=True)
class Allocation:
    alloc_size: int
    ptr: int
    device: torch.device


class DeviceEvent:
    """An event of the profiler's tree; what is allocated is on `cuda:0`, but for two sizes.

    The nodes that the autograd engine runs beneath it are left out and put into `engine_thread`.
    """

    def __init__(self, event: Any, engine_thread: list["DeviceEvent"]) -> None:
        self._event = event
        below = [DeviceEvent(child, engine_thread) for child in event.children]
        self.children = [child for child in below if not child.is_run_by_engine]
        engine_thread += [child for child in below if child.is_run_by_engine]

    @property
    def is_run_by_engine(self) -> bool:
        return str(self.name).startswith(EVALUATE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._event, name)

    @property
    def extra_fields(self) -> Any:
        fields = self._event.extra_fields
        if not hasattr(fields, "alloc_size"):
            return fields
        places = {OTHER_DEVICE_BYTES: torch.device("cuda", 1), HOST_BYTES: torch.device("cpu")}
        device = places.get(abs(fields.alloc_size), torch.device("cuda", 0))
        return Allocation(alloc_size=fields.alloc_size, ptr=fields.ptr, device=device)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(FEATURES))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (inputs.sum() * self.weight).sum()  # forward line


def train(model: Model) -> None:
    kept = [torch.ones(3_000), torch.ones(1_000)]
    model(torch.ones(FEATURES)).backward()  # model call
    kept.clear()


def on_device(roots: Iterable[Any]) -> list[DeviceEvent]:
    engine_thread: list[DeviceEvent] = []
    return [*(DeviceEvent(root, engine_thread) for root in roots), *engine_thread]


def own_sites(stack: tuple[str, ...]) -> list[str]:
    """Those in this file."""
    return [site for site in stack if "test_device_allocations" in site]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> tuple[AllocationEvent, ...]:
    model = Model()
    with (
        torch.profiler.profile(profile_memory=True, with_stack=True) as profiler,
        ExitStack() as end,
    ):
        for undo in watch_operators():
            end.callback(undo)
        train(model)
    results: Any = profiler.profiler.kineto_results
    folder = tmp_path_factory.mktemp("device")
    sites = Sites(HERE.parents[3], LineWriter(RankFolder(folder), "sources.jsonl").write)
    found = WindowEvents(CallSites(sites), torch.device("cuda", 0))
    found.walk(on_device(results.experimental_event_tree()))
    path = folder / "allocations-1.parquet"
    found.write_allocations(path)
    return read_allocations(path).events


def test_memory_of_the_host_and_of_other_devices_is_left_out(events: tuple[AllocationEvent, ...]) -> None:
    sizes = {abs(event.num_bytes) for event in events}
    assert 4 * FEATURES in sizes
    assert not sizes & {OTHER_DEVICE_BYTES, HOST_BYTES}


def test_a_tensor_of_the_forward_pass_has_the_stack_it_was_made_with(events: tuple[AllocationEvent, ...]) -> None:
    called, forward = line_of(HERE, "model call"), line_of(HERE, "forward line")
    (product,) = [event for event in events if event.operation == "aten::mul" and not event.is_backward]
    assert own_sites(product.stack)[-2:] == [
        f"tests/recorder/windows/test_device_allocations.py:{called}:train",
        f"tests/recorder/windows/test_device_allocations.py:{forward}:forward",
    ]
    assert product.modules == ("Model",)


def test_what_the_engines_thread_allocates_has_the_forward_line(events: tuple[AllocationEvent, ...]) -> None:
    gradients = [event for event in events if event.is_backward and event.num_bytes == 4 * FEATURES]
    assert gradients
    forward = f"tests/recorder/windows/test_device_allocations.py:{line_of(HERE, 'forward line')}:forward"
    assert {own_sites(event.forward_stack)[-1] for event in gradients} == {forward}
    assert {event.stack for event in gradients} == {()}
