"""What the simulated device of tests/simulated_cuda takes for granted and no other test here shows."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

from efprof.recorder.windows.cuda_memory import CudaHistory
from efprof.units import MIB
from tests.gpu.cuda_runs import needs_cuda, needs_two, results_folder, synchronisation_is_an_error
from tests.simulated_cuda.cuda import FACTORIES

pytestmark = needs_cuda

LONG = 10**9
"""Cycles: half a second or more."""
OLD, NEW = -7.0, 0.25

ARGUMENTS: dict[str, tuple[object, ...]] = {
    "as_tensor": ([1.0],), "tensor": ([1.0],), "full": ((3,), 1.0), "linspace": (0, 1, 3), "randint": (3, (3,)),
    "tril_indices": (3, 3),
}  # fmt: skip


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


def test_tensors_lie_where_they_are_made_and_what_is_made_of_them_does_too() -> None:
    here = torch.ones(3, device="cuda")
    assert here.device == torch.device("cuda", torch.cuda.current_device())
    assert (here * 2).device == here.device
    assert here.to("cuda") is here.cuda() is here.to(here.device) is here
    assert here.cpu().device.type == torch.ones(3).to(here.cpu()).device.type == "cpu"
    with torch.device("cuda"):  # as torch.set_default_device
        made = {name: getattr(torch, name)(*ARGUMENTS.get(name, (3,))) for name in FACTORIES}
    assert {name for name, tensor in made.items() if not tensor.is_cuda} == set()


@needs_two
def test_two_devices_do_not_mix_and_to_enter_a_stream_is_to_go_to_its_device() -> None:
    here, there = (torch.ones(3, device=f"cuda:{index}") for index in range(2))
    with pytest.raises(RuntimeError, match="same device"):
        here + there
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(0))
    with pytest.raises(RuntimeError, match="Event device 0 does not match"):
        event.record(torch.cuda.current_stream(1))
    aside = torch.cuda.Stream(1)
    with torch.cuda.stream(aside):
        assert (torch.cuda.current_stream(1), torch.cuda.current_device()) == (aside, 1)
        assert torch.cuda.current_stream(0) == torch.cuda.default_stream(0)
    assert torch.cuda.current_device() == 0


def test_a_pinned_target_holds_what_it_held_until_the_device_has_come_to_the_copy() -> None:
    value, target = torch.tensor(NEW, device="cuda"), torch.full((), OLD).pin_memory()
    torch.cuda._sleep(LONG)
    target.copy_(value, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()
    assert (target.item(), arrived.query()) == (OLD, False)
    arrived.synchronize()
    assert (target.item(), arrived.query()) == (NEW, True)


@pytest.mark.parametrize("by_event", [False, True])
def test_a_stream_copies_what_another_has_not_made_yet_unless_it_waits_for_it(by_event: bool) -> None:
    aside, here = torch.cuda.Stream(), torch.cuda.current_stream()
    value, target, made = torch.full((), OLD, device="cuda"), torch.empty((), pin_memory=True), torch.cuda.Event()
    torch.cuda.synchronize()
    with torch.cuda.stream(aside):
        torch.cuda._sleep(LONG)
        value.fill_(NEW)
        made.record()
    target.copy_(value, non_blocking=True)
    here.synchronize()
    assert (target.item(), aside.query()) == (OLD, False)
    if by_event:
        made.wait()
    else:
        here.wait_stream(aside)
    target.copy_(value, non_blocking=True)
    assert not here.query()
    here.synchronize()
    assert target.item() == NEW


def test_a_stream_computes_with_what_another_has_not_made_yet_unless_it_waits_for_it() -> None:
    aside, here, value = torch.cuda.Stream(), torch.cuda.current_stream(), torch.full((), OLD, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(aside):
        torch.cuda._sleep(LONG)
        value.fill_(NEW)
    assert ((value * 2).item(), aside.query()) == (2 * OLD, False)
    here.wait_stream(aside)
    assert (value * 2).item() == 2 * NEW


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


WAITING: dict[str, Callable[[torch.Tensor], object]] = {
    "item": torch.Tensor.item,
    "tolist": torch.Tensor.tolist,
    "nonzero": torch.nonzero,
    "masked_select": lambda value: value.masked_select(value > 0),
    "equal": lambda value: torch.equal(value, value + 1),
    "to the host": torch.Tensor.cpu,
    "into the host": lambda value: torch.empty(1).copy_(value),
}


@pytest.mark.parametrize("name", WAITING)
def test_the_host_waits_for_what_it_reads(name: str) -> None:
    value = torch.ones(1, device="cuda")
    WAITING[name](value)
    with synchronisation_is_an_error(), pytest.raises(RuntimeError, match="synchroniz"):
        WAITING[name](value)
    torch.cuda._sleep(LONG)
    before = torch.cuda.Event()
    before.record()
    WAITING[name](value)
    assert before.query(), "the device has done all that it was given before"


def test_events_tell_times_only_when_both_are_over_and_an_unrecorded_one_is() -> None:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    assert (start.query(), start.device) == (True, None)
    start.record()
    for other in (end, torch.cuda.Event()):  # not recorded; not to be timed
        with pytest.raises((RuntimeError, ValueError)):
            start.elapsed_time(other)
    torch.cuda._sleep(LONG)
    end.record()
    with pytest.raises(RuntimeError):
        start.elapsed_time(end)
    end.synchronize()
    assert start.elapsed_time(end) > 0


def test_the_allocator_counts_what_it_serves_by_the_names_that_are_read() -> None:
    def counted(name: str) -> int:
        return int(torch._C._cuda_memoryStats(0)[name]["all"]["current"])

    with torch.cuda.device(0):
        before = counted("allocated_bytes")
        held = torch.empty(MIB, device="cuda")
        assert counted("allocated_bytes") - before == held.nbytes == 4 * MIB
        assert counted("reserved_bytes") >= counted("active_bytes") >= counted("allocated_bytes")
        assert counted("inactive_split_bytes") >= 0
        del held
        assert counted("allocated_bytes") == before
    assert {"num_alloc_retries", "num_ooms"} <= torch._C._cuda_memoryStats(0).keys()


def test_blocks_keep_their_stacks_when_the_history_is_off_and_on_again() -> None:
    history = CudaHistory()
    try:
        history.turn_on(100)
        held = torch.empty(3_333_333, dtype=torch.uint8, device="cuda")
        history.turn_off()
        later = torch.empty(5_555_555, dtype=torch.uint8, device="cuda")
        history.turn_on(100)
        snapshot = torch.cuda.memory._snapshot()
    finally:
        history.turn_off()
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"] if block["state"] != "inactive"]
    frames = {block["requested_size"]: block.get("frames") for block in blocks}
    assert any(frame["filename"] == __file__ for frame in frames[held.nbytes])
    assert not frames[later.nbytes]
    assert not [entry for trace in snapshot["device_traces"] for entry in trace if entry["action"] == "alloc"]


def test_a_replay_does_again_what_was_captured_on_the_same_memory() -> None:
    inputs, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
    (inputs * 2).add_(1)
    with torch.cuda.graph(graph):
        doubled = inputs * 2
        inputs.add_(1)
    assert inputs.tolist() == [1.0] * 3, "nothing ran yet"
    for value in (2.0, 4.0):
        graph.replay()
        assert doubled.tolist() == [value] * 3


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
