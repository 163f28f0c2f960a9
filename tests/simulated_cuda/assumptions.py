"""What the simulated device takes for granted of a real one: each runs on both.

tests/simulated_cuda/test_assumptions.py asks the simulation, tests/gpu/test_17_what_is_simulated.py a real device.
`cycles` keep the device busy for longer than the host takes to get on; `many_cycles` where nothing waits for it.
"""

import threading
from collections.abc import Callable

import pytest
import torch

from efprof.recorder.windows.cuda_memory import CudaHistory
from efprof.units import MIB
from tests.gpu.cuda_runs import synchronisation_is_an_error
from tests.simulated_cuda.places import FACTORIES

OLD, NEW = -7.0, 0.25

Operation = Callable[[torch.Tensor], object]

WAITS: dict[str, Operation] = {
    "item": lambda value: value.item(),
    "bool": bool,
    "tolist": lambda value: value.tolist(),
    "nonzero": torch.nonzero,
    "masked_select": lambda value: value.masked_select(value > 0),
    "equal": lambda value: torch.equal(value, value + 1),
    "read by a mask": lambda value: value[value > 0],
    "written by a mask": lambda value: value.index_put_((value > 0,), torch.ones(1, device="cuda")),
    "an index on the host": lambda value: value[torch.tensor([0])],
    "unique": torch.unique,
    "unique of rows": lambda value: value.reshape(1, 1).unique(dim=0),
    "unique_consecutive": torch.unique_consecutive,
    "bincount": lambda value: torch.bincount(value.long()),
    "repeat_interleave": lambda value: value.repeat_interleave(value.long()),
    "multinomial": lambda value: torch.multinomial(value.abs() + 1, 1),
    "cpu": lambda value: value.cpu(),
    "to the host": lambda value: value.to("cpu"),
    "into the host": lambda value: torch.empty(1).copy_(value),
    "into pinned memory": lambda value: torch.empty(1, pin_memory=True).copy_(value),
    "from the host": lambda value: value.copy_(torch.ones(1)),
    "from pinned memory": lambda value: torch.ones(1, pin_memory=True).to("cuda"),
    "a tensor of numbers": lambda value: torch.tensor([1.0], device="cuda"),
    "a tensor of an array": lambda value: torch.as_tensor(torch.ones(1).numpy(), device="cuda"),
}
"""What the host waits in, with a tensor on the device."""

DOES_NOT_WAIT: dict[str, Operation] = {
    "fill": lambda value: torch.full((1,), 1.0, device="cuda").fill_(2.0),
    "a number": lambda value: value * 2.0 + torch.tensor(1.0),
    "filled by a mask": lambda value: value.masked_fill_(value > 2, 0.0),
    "a number by a mask": lambda value: value.__setitem__(value > 2, 0.0),
    "an index on the device": lambda value: value[torch.zeros(1, dtype=torch.long, device="cuda")],
    "repeat_interleave of a known size": lambda value: value.repeat_interleave(
        torch.ones(1, dtype=torch.long, device="cuda"), output_size=1
    ),
    "from pinned memory": lambda value: value.copy_(torch.ones(1, pin_memory=True), non_blocking=True),
    "into pinned memory": lambda value: torch.empty(1, pin_memory=True).copy_(value, non_blocking=True),
    "another type": lambda value: value.to(torch.float16),
}

COUNTERS = (
    "allocation", "segment", "active", "inactive_split",
    "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes",
)  # fmt: skip
MORE_COUNTERS = (
    "oversize_allocations", "oversize_segments", "num_alloc_retries", "num_ooms", "num_sync_all_streams",
    "num_device_alloc", "num_device_free", "max_split_size",
)  # fmt: skip

ARGUMENTS: dict[str, tuple[object, ...]] = {
    "as_tensor": ([1.0],), "tensor": ([1.0],), "full": ((3,), 1.0), "linspace": (0, 1, 3), "randint": (3, (3,)),
    "tril_indices": (3, 3),
}  # fmt: skip
"""Of functions that make tensors, other than a size."""


@pytest.mark.parametrize("name", WAITS)
def test_the_host_waits_within(name: str, cycles: int) -> None:
    value = torch.ones(1, device="cuda")
    WAITS[name](value)
    with synchronisation_is_an_error(), pytest.raises(RuntimeError, match="synchroniz"):
        WAITS[name](value)
    torch.cuda._sleep(cycles)
    before = torch.cuda.Event()
    before.record()
    WAITS[name](value)
    assert before.query(), "the device has done all that it was given before"


@pytest.mark.parametrize("name", DOES_NOT_WAIT)
def test_the_host_does_not_wait_within(name: str, many_cycles: int) -> None:
    value = torch.ones(1, device="cuda")
    DOES_NOT_WAIT[name](value)
    torch.cuda.synchronize()
    torch.cuda._sleep(many_cycles)
    before = torch.cuda.Event()
    before.record()
    with synchronisation_is_an_error():
        DOES_NOT_WAIT[name](value)
    assert not before.query()


def test_a_copy_to_the_host_that_is_not_waited_for_arrives_late_in_pinned_memory(cycles: int) -> None:
    value = torch.full((), NEW, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(cycles)
    copied = value.to("cpu", non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    assert copied.is_pinned()
    assert not done.query()
    done.synchronize()
    assert copied.item() == NEW


def test_to_synchronise_a_device_is_to_wait_for_all_its_streams(cycles: int) -> None:
    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        torch.cuda._sleep(cycles)
    torch.cuda.current_stream().synchronize()
    assert not aside.query()
    torch.cuda.synchronize()
    assert aside.query()


def test_a_stream_is_a_handle_of_which_there_are_several() -> None:
    first, second, aside = torch.cuda.current_stream(), torch.cuda.current_stream(), torch.cuda.Stream()
    assert first is not second
    assert first == second != aside
    assert hash(first) == hash(second)
    assert isinstance(first, torch.Stream)
    assert first.device == aside.device == torch.device("cuda", torch.cuda.current_device())
    assert (first.device_index, first.device_type, first.stream_id) == (torch.cuda.current_device(), 1, 0)
    assert first.cuda_stream == 0 != aside.cuda_stream
    assert first.query() is True
    with pytest.raises(TypeError):
        torch.cuda.Stream(length=1)


def test_an_event_has_a_device_once_it_is_recorded() -> None:
    event = torch.cuda.Event(enable_timing=True)
    assert (event.device, event.cuda_event, event.query()) == (None, 0, True)
    event.record()
    assert event.device == torch.cuda.current_stream().device
    assert event.cuda_event == event.event_id != 0
    with pytest.raises(TypeError):
        torch.cuda.Event(timing=True)


def test_a_thread_begins_on_the_first_device_and_its_default_stream() -> None:
    seen: list[object] = []

    def look() -> None:
        seen.extend((torch.cuda.current_device(), torch.cuda.current_stream(0) == torch.cuda.default_stream(0)))

    with torch.cuda.stream(torch.cuda.Stream()):
        if torch.cuda.device_count() > 1:
            torch.cuda.set_device(1)
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    torch.cuda.set_device(0)
    assert seen == [0, True]


def test_a_backward_pass_runs_on_the_stream_of_its_forward_pass() -> None:
    seen: list[torch.cuda.Stream] = []
    weight, aside = torch.ones(3, device="cuda", requires_grad=True), torch.cuda.Stream()
    with torch.cuda.stream(aside):
        loss = weight.sum()
        weight.register_hook(lambda _: seen.append(torch.cuda.current_stream()))
        loss.backward()
    assert seen == [aside]


def test_the_properties_of_a_device_have_their_types() -> None:
    found = torch.cuda.get_device_properties(0)
    assert (found.major, found.minor) == torch.cuda.get_device_capability(0)
    assert torch.cuda.get_device_name(0) == found.name
    whole = ("total_memory", "multi_processor_count", "L2_cache_size", "warp_size", "max_threads_per_multi_processor")
    assert all(isinstance(getattr(found, name), int) and getattr(found, name) > 0 for name in whole)
    assert str(found.uuid).count("-") == 4


def test_the_allocators_counters_have_torchs_names_and_change_with_what_is_served() -> None:
    torch.ones(1, device="cuda")
    stats = torch._C._cuda_memoryStats(0)
    for name in COUNTERS:
        assert stats[name].keys() == {"all", "large_pool", "small_pool"}
        assert all(one.keys() == {"current", "peak", "allocated", "freed"} for one in stats[name].values())
    assert set(MORE_COUNTERS) <= stats.keys()
    before = torch.cuda.memory_stats(0)
    with torch.cuda.device(0):
        held = torch.empty(4 * MIB + 1, dtype=torch.uint8, device="cuda")
    during = torch.cuda.memory_stats(0)
    del held
    torch.cuda.reset_peak_memory_stats(0)
    after = torch.cuda.memory_stats(0)
    kind = "large_pool.current"
    assert during[f"requested_bytes.{kind}"] - before[f"requested_bytes.{kind}"] == 4 * MIB + 1
    assert during[f"allocated_bytes.{kind}"] - before[f"allocated_bytes.{kind}"] == 4 * MIB + 512
    assert [during[f"{one}.{kind}"] - before[f"{one}.{kind}"] for one in ("allocation", "active")] == [1, 1]
    assert after["allocated_bytes.all.current"] == before["allocated_bytes.all.current"]
    assert after["allocated_bytes.all.peak"] == after["allocated_bytes.all.current"]
    assert after["allocation.all.freed"] > before["allocation.all.freed"]


def test_the_history_refuses_what_it_does_not_know() -> None:
    record = torch.cuda.memory._record_memory_history
    for wrong in ({"max_entrys": 3}, {"skips": ["alloc"]}):
        with pytest.raises(TypeError):
            record("all", **wrong)
    for wrong in ({"enabled": "some"}, {"context": "some"}, {"stacks": "some"}):
        with pytest.raises(RuntimeError):
            record(**wrong)
    assert not torch._C._cuda_isHistoryEnabled()


def test_a_history_of_the_state_alone_keeps_one_entry() -> None:
    torch.cuda.memory._record_memory_history("state")
    try:
        held = [torch.ones(3, device="cuda") for _ in range(3)]
        entries = [entry for trace in torch.cuda.memory._snapshot()["device_traces"] for entry in trace]
    finally:
        torch.cuda.memory._record_memory_history(None)
    assert len(held) == 3
    assert len(entries) <= 1


def test_random_numbers_of_a_device_have_a_generator_of_their_own() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    torch.cuda.manual_seed(4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.cuda.initial_seed() == 4


def test_what_is_captured_runs_when_it_is_replayed_and_events_may_be_made_meanwhile() -> None:
    inputs, graph, aside = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    (inputs * 2).add_(1)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        doubled = inputs * 2
        aside.wait_stream(torch.cuda.current_stream())
        torch.cuda.current_stream().wait_stream(aside)
        inputs.add_(1)
        mark = torch.cuda.Event()
        mark.record()
    assert inputs.tolist() == [1.0] * 3, "nothing ran yet"
    with pytest.raises(RuntimeError):
        mark.query()
    for value in (2.0, 4.0):
        graph.replay()
        assert doubled.tolist() == [value] * 3


def test_tensors_lie_where_they_are_made_and_what_is_made_of_them_does_too() -> None:
    here = torch.ones(3, device="cuda")
    assert here.device == torch.device("cuda", torch.cuda.current_device())
    assert (here * 2).device == here.device
    assert here.to("cuda") is here.cuda() is here.to(here.device) is here
    assert here.cpu().device.type == torch.ones(3).to(here.cpu()).device.type == "cpu"
    with torch.device("cuda"):  # as torch.set_default_device
        made = {name: getattr(torch, name)(*ARGUMENTS.get(name, (3,))) for name in FACTORIES}
    assert {name for name, tensor in made.items() if not tensor.is_cuda} == set()


def test_two_devices_do_not_mix_and_to_enter_a_stream_is_to_go_to_its_device() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
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


def test_a_pinned_target_holds_what_it_held_until_the_device_has_come_to_the_copy(cycles: int) -> None:
    value, target = torch.tensor(NEW, device="cuda"), torch.full((), OLD).pin_memory()
    torch.cuda._sleep(cycles)
    target.copy_(value, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()
    assert (target.item(), arrived.query()) == (OLD, False)
    arrived.synchronize()
    assert (target.item(), arrived.query()) == (NEW, True)


@pytest.mark.parametrize("by_event", [False, True])
def test_a_stream_copies_what_another_has_not_made_yet_unless_it_waits_for_it(by_event: bool, cycles: int) -> None:
    aside, here = torch.cuda.Stream(), torch.cuda.current_stream()
    value, target, made = torch.full((), OLD, device="cuda"), torch.empty((), pin_memory=True), torch.cuda.Event()
    torch.cuda.synchronize()
    with torch.cuda.stream(aside):
        torch.cuda._sleep(cycles)
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


def test_a_stream_computes_with_what_another_has_not_made_yet_unless_it_waits_for_it(cycles: int) -> None:
    aside, here, value = torch.cuda.Stream(), torch.cuda.current_stream(), torch.full((), OLD, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(aside):
        torch.cuda._sleep(cycles)
        value.fill_(NEW)
    assert (value * 2).item() != 2 * NEW
    assert not aside.query()
    here.wait_stream(aside)
    assert (value * 2).item() == 2 * NEW


def test_events_tell_times_only_when_both_are_over_and_an_unrecorded_one_is(cycles: int) -> None:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    assert (start.query(), start.device) == (True, None)
    start.record()
    for other in (end, torch.cuda.Event()):  # not recorded; not to be timed
        with pytest.raises((RuntimeError, ValueError)):
            start.elapsed_time(other)
    torch.cuda._sleep(cycles)
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
