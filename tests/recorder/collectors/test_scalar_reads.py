"""Reads of tensor values, at the line that asked for them."""

import contextlib
import operator
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch.utils.data import DataLoader

from efprof.artifacts.events import LoaderBuilt
from efprof.recorder.hooks.torch_versions import version_of
from tests.recorder.recording import line_of, record_here
from tests.recorder.training import make_weight

HERE = Path(__file__)


def step_with(read: Callable[[torch.Tensor], object]) -> Callable[[], None]:
    """Two training steps that hand their loss to `read`."""

    def train() -> None:
        weight, optimizer = make_weight(2)
        for _ in range(2):
            loss = weight.sum()
            loss.backward()
            read(loss.detach())
            optimizer.step()

    return train


def read_item(loss: torch.Tensor) -> object:
    return loss.item()  # item


def read_list(loss: torch.Tensor) -> object:
    return loss.tolist()  # tolist


def read_copy(loss: torch.Tensor) -> object:
    return loss.cpu()  # cpu


def read_bool(loss: torch.Tensor) -> object:
    return "up" if loss > 0 else "down"  # bool


def read_float(loss: torch.Tensor) -> object:
    return float(loss)  # float


def read_int(loss: torch.Tensor) -> object:
    return int(loss)  # int


def read_index(loss: torch.Tensor) -> object:
    return [1, 2, 3][loss.long()]  # index


def read_nonzero(loss: torch.Tensor) -> object:
    return loss.reshape(1).nonzero()  # nonzero


def read_format(loss: torch.Tensor) -> object:
    return f"loss {loss:.3f}"  # format


def read_print(loss: torch.Tensor) -> object:
    return str(loss.expand(20, 20) * torch.rand(20, 20))  # print


@pytest.mark.parametrize(
    ("read", "call", "marker"),
    [
        (read_item, "item", "item"),
        (read_list, "tolist", "tolist"),
        (read_copy, "cpu", "cpu"),
        (read_bool, "bool", "bool"),
        (read_float, "float", "float"),
        (read_int, "int", "int"),
        (read_index, "int", "index"),
        (read_nonzero, "nonzero", "nonzero"),
        (read_format, "item", "format"),
        (read_print, "print", "print"),
    ],
)
def test_a_read_is_counted_once_at_its_line(
    read: Callable[[torch.Tensor], object], call: str, marker: str, tmp_path: Path
) -> None:
    reads = [read for step in record_here(tmp_path, step_with(read)).steps for read in step.reads]
    site = f"tests/recorder/collectors/test_scalar_reads.py:{line_of(HERE, marker)}:{read.__name__}"
    assert [(read.site, read.call, read.count) for read in reads] == [(site, call, 1)] * len(reads)
    assert len(reads) == 2


def test_reads_are_counted_after_a_signal_s_error_in_one(tmp_path: Path) -> None:
    class Rings(torch.Tensor):
        """Whose read a signal comes into."""

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            signal.raise_signal(signal.SIGALRM)
            return super().__torch_function__(func, types, args, kwargs or {})

    def ring(*_: object) -> None:
        raise TimeoutError

    def read(loss: torch.Tensor) -> None:
        with contextlib.suppress(TimeoutError):
            loss.as_subclass(Rings).item()
        loss.item()  # after it

    before = signal.signal(signal.SIGALRM, ring)
    try:
        steps = record_here(tmp_path, step_with(read)).steps
    finally:
        signal.signal(signal.SIGALRM, before)
    line = line_of(HERE, "after it")
    assert [sum(read.count for read in step.reads if f":{line}:" in read.site) for step in steps] == [1, 1]


def test_what_replaces_a_read_is_pickled_as_the_read_itself(tmp_path: Path) -> None:
    originals, pickled = _replaced(), []
    record_here(tmp_path, lambda: pickled.extend(map(pickle.dumps, _replaced())))
    assert all(map(operator.is_, _replaced(), originals)), "all of it was taken out"
    assert [pickle.loads(one) for one in pickled] == originals  # noqa: S301 - our own bytes


class Overrides(torch.Tensor):
    """Does some reads itself, by a table as libraries make them."""

    table: ClassVar[dict[object, Callable[..., object]]] = {torch.Tensor.item: lambda _: 7.0}

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        own = cls.table.get(func)
        return own(*args) if own else super().__torch_function__(func, types, args, kwargs or {})


def test_a_table_of_functions_holds_before_a_recording_and_in_it_and_after_it(tmp_path: Path) -> None:
    found: list[object] = []

    def read(loss: torch.Tensor) -> None:
        Overrides.table |= {torch.Tensor.tolist: lambda _: [7.0], torch.nonzero: lambda _: 7}
        own = loss.as_subclass(Overrides)
        found.extend([own.item(), own.tolist(), torch.nonzero(own)])

    record_here(tmp_path, step_with(read))
    own = torch.ones(1).as_subclass(Overrides)
    assert [*found, own.tolist(), torch.nonzero(own)] == [7.0, [7.0], 7] * 2 + [[7.0], 7]


def _replaced() -> list[object]:
    return [torch.Tensor.item, torch.Tensor.__bool__, torch.autograd.backward]


def test_a_function_that_calls_nonzero_compiles_as_without_the_recorder(tmp_path: Path) -> None:
    found: list[torch.Tensor] = []

    def compile_it() -> None:
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            compiled = torch.compile(lambda values: torch.nonzero(values) + 1, backend="eager", fullgraph=True)
            found.append(compiled(torch.ones(3)))

    record_here(tmp_path, compile_it)
    compile_it()  # the compiler has not kept what it met then
    assert [one.flatten().tolist() for one in found] == [[1, 2, 3]] * 2


def test_what_torch_reads_for_itself_is_not_counted(tmp_path: Path) -> None:
    if torch.cuda.is_available() and version_of(torch) < (2, 13):
        pytest.skip("needs torch 2.13: before it Adam's count of steps lies on the default device, which is told")

    def train() -> None:
        weight = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.Adam([weight])
        for _ in range(3):
            weight.sum().backward()
            torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)
            optimizer.step()

    assert [step.reads for step in record_here(tmp_path, train).steps] == [[], [], []]


def test_reads_outside_of_steps_are_not_counted(tmp_path: Path) -> None:
    def read_before() -> None:
        torch.ones(1).item()
        step_with(lambda loss: None)()

    assert [step.reads for step in record_here(tmp_path, read_before).steps] == [[], []]


class OnDevice(torch.Tensor):
    """As if it were on a device, whose values come late."""

    is_cpu = False


READS_OF_A_DEVICE = [read_item, read_list, read_copy, read_bool, read_float, read_int, read_nonzero]


@pytest.mark.parametrize("read", READS_OF_A_DEVICE, ids=lambda read: read.__name__)
def test_in_a_run_on_a_device_only_what_must_be_waited_for_is_counted(
    read: Callable[[torch.Tensor], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_both(loss: torch.Tensor) -> None:
        with monkeypatch.context() as pretended:
            pretended.setattr(torch.cuda, "is_initialized", lambda: True)
            read(loss)  # the CPU has it already
            read(loss.as_subclass(OnDevice))

    assert [sum(read.count for read in step.reads) for step in record_here(tmp_path, step_with(read_both)).steps] == [
        1,
        1,
    ]


def test_where_a_device_is_never_used_the_cpu_stands_for_it(tmp_path: Path) -> None:
    def read_both(loss: torch.Tensor) -> None:
        loss.item()
        loss.as_subclass(OnDevice).item()

    assert [[read.count for read in step.reads] for step in record_here(tmp_path, step_with(read_both)).steps] == [
        [1, 1],
        [1, 1],
    ]


def test_a_read_of_every_step_is_counted_in_every_step_of_a_long_run(tmp_path: Path) -> None:
    def train() -> None:
        weight, optimizer = make_weight(2)
        for _ in range(120):
            loss = weight.sum()
            loss.backward()
            optimizer.step()
            loss.item()

    steps = record_here(tmp_path, train).steps
    assert [[(read.call, read.count) for read in step.reads] for step in steps] == [[("item", 1)]] * 120


def test_a_loader_is_noted_where_it_is_made(tmp_path: Path) -> None:
    def train() -> None:
        loader = DataLoader(range(8), batch_size=4)  # type: ignore[arg-type] # loader
        next(iter(loader))

    (built,) = record_here(tmp_path, train).events(LoaderBuilt)
    line = line_of(HERE, "loader")
    assert built.site == f"tests/recorder/collectors/test_scalar_reads.py:{line}:{train.__qualname__}"
    assert (built.loader, built.num_workers, built.batch_size, built.num_batches) == (0, 0, 4, 2)


def test_the_function_nonzero_is_left_alone(tmp_path: Path) -> None:
    found, original = list[object](), torch.nonzero
    (step, *_) = record_here(tmp_path, step_with(lambda loss: found.extend([torch.nonzero, torch.nonzero(loss)]))).steps
    assert found[0] is original
    assert step.reads == [], "windows see its calls"
