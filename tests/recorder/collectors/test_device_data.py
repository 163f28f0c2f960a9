"""What is seen of large tensors that a program keeps on a device: which parts of them its steps use, and where."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo import eval_frame
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils.data import DataLoader, TensorDataset

from efprof.artifacts.events import CollectorStopped, DeviceData, DeviceTensor
from efprof.recorder.collectors import device_data
from tests.recorder.recording import Recorded, line_of, record_here

HERE = Path(__file__)
has_compiled = device_data._has_compiled
NUM_STEPS, BATCH, WIDTH = 6, 8, 16
ROWS = 10 * BATCH
ALL, PART = 4 * ROWS * WIDTH, 4 * BATCH * WIDTH
Batches = Callable[[torch.Tensor], Iterator[torch.Tensor]]


@pytest.fixture(autouse=True)
def on_this_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stands for the device, where there is none, and small data for large ones."""
    monkeypatch.setattr(device_data, "DEVICE", torch.empty(0).device.type)
    monkeypatch.setattr(device_data, "MIN_BYTES", ALL)
    monkeypatch.setattr(device_data, "_has_compiled", lambda: False)  # another test may have


def train(batches: Batches, told: Callable[[float], None] = lambda _: None) -> None:
    """Six steps; each loss is told."""
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.rand(ROWS, WIDTH)
    for batch, _ in zip(batches(data), range(NUM_STEPS), strict=False):
        loss = model(batch.float() / 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told(loss.item())


def sliced(data: torch.Tensor) -> Iterator[torch.Tensor]:
    for first in range(0, ROWS, BATCH):
        yield data[first : first + BATCH]  # sliced


def indexed(data: torch.Tensor) -> Iterator[torch.Tensor]:
    for index in torch.randperm(len(data)).split(BATCH):
        yield data[index]


def looked_up(data: torch.Tensor) -> Iterator[torch.Tensor]:
    while True:
        yield functional.embedding(torch.randint(ROWS, (BATCH,)), data)


def loaded(data: torch.Tensor) -> Iterator[torch.Tensor]:
    for (batch,) in DataLoader(TensorDataset(data), batch_size=BATCH):
        yield batch


def whole(data: torch.Tensor) -> Iterator[torch.Tensor]:
    while True:
        yield data


def cut_to_fit(data: torch.Tensor) -> Iterator[torch.Tensor]:
    while True:
        yield data[:BATCH]


def written(data: torch.Tensor) -> Iterator[torch.Tensor]:
    for first in range(0, ROWS, BATCH):
        data[first : first + BATCH] += 1
        yield data[first : first + BATCH]


def only_asked_for_its_shape(data: torch.Tensor) -> Iterator[torch.Tensor]:
    while True:
        yield torch.rand(BATCH, data.shape[1]) + len(data)


def recorded(folder: Path, batches: Batches) -> Recorded:
    found = record_here(folder, partial(train, batches))
    assert found.events(CollectorStopped) == []
    return found


def use_in(folder: Path, batches: Batches) -> DeviceTensor | None:
    """Of the data, by its size."""
    events = recorded(folder, batches).events(DeviceData)
    assert all(event.num_steps == 2 for event in events)
    return next((one for event in events for one in event.tensors if one.num_bytes == ALL), None)


@pytest.mark.parametrize("batches", [sliced, indexed, looked_up, loaded])
def test_each_step_is_seen_to_use_another_part(tmp_path: Path, batches: Batches) -> None:
    use = use_in(tmp_path, batches)
    assert use is not None
    assert (use.is_varied, use.is_written) == (True, False)
    assert use.taken_bytes == pytest.approx(2 * PART, abs=PART), "two steps, and at most a batch asked for ahead"
    site = f"tests/recorder/collectors/{HERE.name}:{line_of(HERE, 'sliced')}:sliced"
    assert (use.sites == [site]) == (batches is sliced)


@pytest.mark.parametrize(
    ("batches", "num_bytes", "is_varied", "is_written"),
    [(whole, 2 * ALL, False, False), (cut_to_fit, 2 * PART, False, False), (written, 2 * PART, True, True)],
)
def test_what_is_used_as_a_whole_cut_to_fit_or_written_to_is_told(
    batches: Batches, num_bytes: int, is_varied: bool, is_written: bool, tmp_path: Path
) -> None:
    use = use_in(tmp_path, batches)
    assert use is not None
    assert (use.taken_bytes, use.is_varied, use.is_written) == (num_bytes, is_varied, is_written)


def test_to_ask_for_its_shape_is_no_use(tmp_path: Path) -> None:
    assert use_in(tmp_path, only_asked_for_its_shape) is None


def test_parameters_and_buffers_are_no_data(tmp_path: Path) -> None:
    model = torch.nn.Module()
    model.weight, table = torch.nn.Parameter(torch.rand(ROWS, WIDTH)), torch.rand(ROWS, WIDTH)
    model.register_buffer("table", table)
    uses = device_data._candidates()
    found = {use.address for use in uses.values()}
    assert found.isdisjoint({model.weight.data_ptr(), table.data_ptr()})


class Mode(TorchFunctionMode):
    """The program's own, which counts what it sees."""

    num_calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Mode.num_calls += 1
        return func(*args, **(kwargs or {}))


def train_within_a_mode() -> None:
    with Mode():
        train(sliced)


@pytest.mark.parametrize(
    ("program", "replaced", "why_not"),
    [
        (partial(train, sliced), {"MIN_BYTES": 2**50}, ""),
        (train_within_a_mode, {}, "a mode of the program's own was on"),
        (
            partial(train, sliced),
            {"_has_compiled": lambda: True},
            "the program is compiled, which a mode would have done anew",
        ),
    ],
    ids=["little data", "a mode of the program", "compiled code"],
)
def test_what_is_left_alone_is_told_with_the_reason(
    program: Callable[[], None],
    replaced: dict[str, Any],
    why_not: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in replaced.items():
        monkeypatch.setattr(device_data, name, value)
    (event,) = record_here(tmp_path, program).events(DeviceData)
    assert (event.tensors, event.why_not) == ([], why_not)
    assert _get_current_function_mode_stack() == []


def test_what_is_to_be_compiled_is_known_before_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eval_frame, "cached_backends", {})
    torch.compiler.disable(len)
    assert not has_compiled()
    torch.compile(abs, backend="eager")
    assert has_compiled()


def test_a_mode_that_each_step_enters_still_works(tmp_path: Path) -> None:
    def within(data: torch.Tensor) -> Iterator[torch.Tensor]:
        for batch in sliced(data):
            before = Mode.num_calls
            with Mode():
                halved = batch / 2
            assert Mode.num_calls == before + 1
            yield halved

    assert use_in(tmp_path, within) is not None
    assert _get_current_function_mode_stack() == []


def test_training_is_the_same_with_and_without_the_watch(tmp_path: Path) -> None:
    def losses(run: Callable[[Callable[[], None]], object]) -> list[float]:
        found: list[float] = []
        run(partial(train, sliced, told=found.append))
        return found

    alone, watched = losses(lambda work: work()), losses(partial(record_here, tmp_path))
    assert len(alone) == NUM_STEPS
    assert alone == watched
