"""On a real device all holds that the simulated one of tests/simulated_cuda takes for granted."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from tests.gpu.cuda_runs import needs_cuda, results_folder
from tests.simulated_cuda.assumptions import *  # noqa: F403
from tests.simulated_cuda.starts import LAZY_STARTS, told_of_a_lazy_start

pytestmark = needs_cuda


@pytest.fixture
def cycles() -> int:
    """Half a second or more."""
    return 10**9


@pytest.fixture
def many_cycles() -> int:
    return 10**9


@pytest.fixture(autouse=True)
def _warm_and_idle() -> Iterator[None]:
    """To load a kernel for the first time may wait for the device."""
    torch.cuda._sleep(1)
    torch.ones(3, device="cuda").fill_(2.0).sum().item()
    yield
    torch.cuda.synchronize()


def run(text: str) -> str:
    """In a process of its own, which ends at once: a spoilt capture may make it crash later."""
    ending = "\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n"
    return subprocess.run(
        [sys.executable, "-c", text + ending], capture_output=True, text=True, check=True, timeout=300
    ).stdout


FORKS = """
import os, torch

torch.ones(1, device="cuda")
if child := os.fork():
    os.waitpid(child, 0)
else:
    try:
        torch.ones(1, device="cuda")
    except RuntimeError as error:
        print(error)
"""


def test_a_stream_is_current_in_its_block_alone_and_a_forked_process_may_not_use_cuda() -> None:
    aside, before = torch.cuda.Stream(), torch.cuda.current_stream()
    with torch.cuda.stream(None):
        assert torch.cuda.current_stream() == before == torch.cuda.default_stream()
    with torch.cuda.stream(aside):
        assert torch.cuda.current_stream() == aside != before
    assert torch.cuda.current_stream() == before
    assert "forked subprocess" in run(FORKS)


CAPTURES_A_READ = """
import torch

inputs, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
inputs.sum().item()
with torch.cuda.stream(torch.cuda.Stream()):
    graph.capture_begin()
    for attempt in (lambda: inputs.sum().item(), graph.capture_end):
        try:
            attempt()
        except RuntimeError as error:
            print(str(error).splitlines()[0])
"""


def test_a_capture_permits_no_wait_and_does_not_survive_one() -> None:
    told = run(CAPTURES_A_READ)
    (results_folder() / "capture-errors.txt").write_text(told)
    first, second = told.splitlines()
    assert "capturing" in first
    assert "previous error" in second


STARTS = """
import torch

has_context, seen = torch._C._cuda_hasPrimaryContext, []
torch.cuda._lazy_call(lambda: seen.append("waited"))
assert seen == [] and not torch.cuda.is_initialized()
torch.cuda.init()
torch.cuda._lazy_call(lambda: seen.append("at once"))
assert seen == ["waited", "at once"]
torch._C._cuda_memoryStats(0), torch.cuda.get_device_properties(0), torch.cuda.Event()
print(has_context(0))
torch.cuda.mem_get_info(0)
print(has_context(0))
"""


def test_what_waits_for_cuda_is_called_as_it_starts_and_a_context_comes_with_the_first_question_to_the_driver() -> None:
    assert run(STARTS).split() == ["False", "True"]


@pytest.mark.parametrize("name", LAZY_STARTS)
def test_cuda_starts_with_the_first_call_that_needs_it(name: str) -> None:
    assert run(LAZY_STARTS[name]).split() == told_of_a_lazy_start(name)


RECORDED_ON_THE_HOST = """
import tempfile, torch, efprof

weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
with tempfile.TemporaryDirectory() as folder, efprof.record(folder):
    for _ in range(30):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
print(torch.cuda.is_initialized(), torch._C._cuda_hasPrimaryContext(0))
"""


def test_the_recorder_starts_no_cuda_for_a_program_that_trains_on_the_host() -> None:
    assert run(RECORDED_ON_THE_HOST).split()[-2:] == ["False", "False"]


BREAKS_DOWN = """
import torch

values, number = torch.ones(3, device="cuda"), torch.tensor([9], device="cuda")
event, asked = torch.cuda.Event(), (lambda: values[number].sum().item(), lambda: values * 2, lambda: event.record())
for attempt in (*asked, torch.cuda.synchronize):
    try:
        attempt()
    except RuntimeError as error:
        print(str(error).splitlines()[0])
print(torch.cuda.memory_allocated() > 0)
"""


def test_after_a_fault_of_a_kernel_each_call_fails_and_the_allocator_still_tells_what_is_in_use() -> None:
    told = run(BREAKS_DOWN).splitlines()
    assert len(told) == 5
    assert all("CUDA error" in line for line in told[:-1])
    assert told[-1] == "True"
