import pytest
import torch
from torch import nn

from energy_flow.training.stage_times import CudaClock, HostClock, NoClock, StageMs, StageTimes
from tests.gpu.cuda_runs import synchronisation_is_an_error


class Ticks:
    """A clock on which a millisecond passes between two marks."""

    def __init__(self) -> None:
        self.now = 0

    def mark(self) -> int:
        self.now += 1
        return self.now

    def elapsed_ms(self, start: int, end: int) -> float:
        return end - start


class Event:
    """A CUDA event of a device that is `num_passed` events far."""

    num_passed = 0
    made: list["Event"] = []  # noqa: RUF012  # cleared by the fixture

    def __init__(self) -> None:
        self.number = 0
        Event.made.append(self)

    def record(self) -> None:
        self.number = max(event.number for event in Event.made) + 1

    def query(self) -> bool:
        return self.number <= Event.num_passed

    def elapsed_time(self, end: "Event") -> float:
        assert end.query(), "the host would have to wait"
        return end.number - self.number


@pytest.fixture
def events() -> type[Event]:
    Event.made, Event.num_passed = [], 0
    return Event


def _twice() -> tuple[StageTimes, nn.Module, nn.Module]:
    energy, bridge = nn.Linear(2, 2), nn.Linear(2, 2)
    return StageTimes(Ticks(), {"energy": [energy], "text_bridge": [bridge]}), energy, bridge


def test_each_step_has_its_own_times_and_micro_batches_of_one_are_added_up() -> None:
    times, energy, bridge = _twice()
    with times:
        for _ in range(2):
            with times.forward():
                energy(torch.ones(2))
                bridge(torch.ones(2))
                bridge(torch.ones(2))
            with times.backward():
                pass
        with times.optimizer():
            pass
    assert times.read(times.take()) == StageMs(forward=14, backward=2, optimizer=1, energy=2, text_bridge=4)
    times, _, _ = _twice()
    with times.optimizer():
        pass
    times.take()
    with times.backward():
        pass
    assert times.read(times.take()) == StageMs(backward=1)


def test_a_forward_outside_of_its_stage_or_that_fails_is_not_timed() -> None:
    times, energy, _ = _twice()
    with times:
        energy(torch.ones(2))
    assert times.take() == []
    times, energy, _ = _twice()
    with times, pytest.raises(RuntimeError, match="shapes"), times.forward():
        energy(torch.ones(3))
    with times.forward():
        pass
    assert times.read(times.take()).energy is None


def test_unknown_are_a_stage_not_passed_and_a_device_that_cannot_be_asked(events: type[Event]) -> None:
    times = StageTimes(NoClock())
    with times.forward():
        pass
    assert times.read(times.take()) == StageMs()
    times = StageTimes(CudaClock(events))
    with times.forward():
        pass
    with times.backward():
        pass
    events.num_passed = 3
    assert times.read(times.take()) == StageMs(forward=1)
    assert HostClock().elapsed_ms(1.0, 1.25) == 250


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_stages_on_cuda_are_timed_without_waiting_for_the_device() -> None:
    model = nn.Linear(2048, 2048).cuda()
    values = torch.ones(2048, 2048, device="cuda")
    times = StageTimes(CudaClock(), {"energy": [model]})
    with synchronisation_is_an_error(), times, times.forward():
        for _ in range(20):
            model(values)
    torch.cuda.synchronize()
    read = times.read(times.take())
    assert 0 < read.energy <= read.forward
