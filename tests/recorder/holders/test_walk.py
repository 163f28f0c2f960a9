"""Which holders a walk from one variable finds, whatever lies in between."""

import functools
import itertools
import queue
import threading
import time
import weakref
from collections import UserDict, UserList
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from efprof.recorder.holders.paths import Clock
from efprof.recorder.holders.walk import Walk
from efprof.recorder.launch.in_code import Recording
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import LineWriter, RankFolder
from tests.support.patience import MAX_WAIT_S


class Trainer:
    """Keeps every loss."""

    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []


def walked(tmp_path: Path, value: object) -> dict[str, int]:
    """The tensors that each holder has, by path, where a variable `main.kept` has this value."""
    sites = Sites(Path(__file__).parents[3], LineWriter(RankFolder(tmp_path), "sources.jsonl"))
    walk = Walk(sites, Clock(time.thread_time() + 20))
    walk.visit_variable("local", "main", __file__, "kept", value)
    return {path: held.tensors for (_, path), held in walk.holders.held.items() if held.tensors}


def with_default(*, kept: tuple[torch.Tensor, ...] = (torch.ones(1),)) -> None:
    """Keeps what no call gives it."""


class Taking:
    """Has a method that keeps a tensor from call to call."""

    def take(self, kept: tuple[torch.Tensor, ...] = (torch.ones(1),)) -> None:
        """Does nothing."""

    def show(self) -> None:
        """Does nothing."""


def holding(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: tensor


def holding_object(trainer: Trainer) -> Callable[[], Trainer]:
    return lambda: trainer


def taking(tensor: torch.Tensor) -> Callable[[], None]:
    one = Taking()
    vars(one)["tensor"] = tensor
    return one.show


@pytest.mark.parametrize("hold", [holding, taking, lambda one: functools.partial(print, one)])
def test_a_list_holds_what_each_of_its_functions_keeps(tmp_path: Path, hold: Callable[[torch.Tensor], object]) -> None:
    assert walked(tmp_path, [hold(torch.ones(1)) for _ in range(100)]) == {"main.kept": 100}


@dataclass(slots=True)
class Slotted:
    """Has no `__dict__`."""

    losses: list[torch.Tensor]
    unset: int = field(init=False)


def test_what_lies_in_slots_is_found(tmp_path: Path) -> None:
    assert walked(tmp_path, Slotted([torch.ones(1)])) == {"Slotted.losses": 1}


class OfNoModule(type):
    """As types that are made in C without a dot in their name, SWIG's among them."""

    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise AttributeError("__module__")


class Odd(metaclass=OfNoModule):
    """Keeps a tensor."""

    def __init__(self) -> None:
        self.kept = [torch.ones(1)]


def test_a_type_of_no_module_is_walked_as_any_other(tmp_path: Path) -> None:
    assert list(walked(tmp_path, Odd()).values()) == [1]


def test_what_the_recording_itself_keeps_is_no_holder_of_the_program_s(tmp_path: Path) -> None:
    recording = Recording(tmp_path, None, is_ours=False)
    vars(recording)["rows"] = [torch.ones(1)]
    assert walked(tmp_path, [recording, Trainer()]) == {}


def test_what_several_functions_of_a_list_share_keeps_its_names(tmp_path: Path) -> None:
    trainer = Trainer()
    trainer.losses.append(torch.ones(1))
    assert walked(tmp_path, [holding_object(trainer), holding_object(trainer)]) == {"Trainer.losses": 1}


def test_one_of_its_kind_in_a_list_keeps_its_names(tmp_path: Path) -> None:
    trainer, tensor = Trainer(), torch.ones(1)
    trainer.losses.append(tensor)
    found = {"Trainer.losses": 1, "holding.tensor": 1}
    assert walked(tmp_path, [trainer, holding(tensor)]) == found
    assert walked(tmp_path, {0: trainer, 1: holding(tensor)}) == found


def test_records_in_a_list_are_held_by_the_list(tmp_path: Path) -> None:
    assert walked(tmp_path, [SimpleNamespace(loss=torch.ones(1)) for _ in range(3)]) == {"main.kept": 3}


def test_a_tensor_between_numbers_is_found(tmp_path: Path) -> None:
    assert walked(tmp_path, [(step, torch.ones(1), "train") for step in range(3)]) == {"main.kept": 3}


def test_one_tensor_in_a_large_data_set_is_found_wherever_it_lies(tmp_path: Path) -> None:
    odd = SimpleNamespace(loss=torch.ones(1))
    for make in (dict, lambda text, label: (text, label), lambda text, label: Sample(label)):
        samples: list[object] = [make(text="a", label=[step]) for step in range(3000)]
        samples[1500] = make(text="a", label=[odd])
        assert walked(tmp_path, samples) == {"main.kept": 1}
        assert sum(walked(tmp_path, {str(step): sample for step, sample in enumerate(samples)}).values()) == 1


class Sample:
    """Of a data set."""

    def __init__(self, label: object) -> None:
        self.label = label


def test_rows_of_a_container_are_counted_once_and_their_tensors_each(tmp_path: Path) -> None:
    rows = [(torch.ones(1), step, torch.ones(1)) for step in range(3000)]
    assert walked(tmp_path, rows) == {"main.kept": 6000}
    assert walked(tmp_path, [*rows, *rows]) == {"main.kept": 6000}


def test_what_a_default_keeps_is_found(tmp_path: Path) -> None:
    assert walked(tmp_path, with_default) == {"with_default.kept": 1}
    assert walked(tmp_path, Taking) == {"Taking.take.kept": 1}


class Node:
    """An element of a linked list."""

    def __init__(self, value: torch.Tensor, previous: "Node | None", others: "list[Node]") -> None:
        self.value, self.previous, self.others = value, previous, others


def test_a_chain_of_containers_is_held_by_the_variable_that_it_hangs_on_however_long_it_is(tmp_path: Path) -> None:
    pair, chain = (), iter(())
    for _ in range(3000):
        pair, chain = (pair, torch.ones(1)), itertools.chain(chain, [torch.ones(1)])
    assert walked(tmp_path, pair) == {"main.kept": 3000}
    assert walked(tmp_path, chain) == {"main.kept": 3000}


def test_a_tree_is_followed_however_deep_it_is(tmp_path: Path) -> None:
    tree = Node(torch.ones(1), None, [])
    for _ in range(3000):
        tree = Node(torch.ones(1), None, [tree])
    assert walked(tmp_path, tree) == {"Node.value": 3001}


def test_functions_around_functions_are_followed_however_many_they_are(tmp_path: Path) -> None:
    def around(inner: Callable[[], object], tensor: torch.Tensor) -> Callable[[], object]:
        return lambda: (inner(), tensor)

    function: Callable[[], object] = list
    for _ in range(3000):
        function = around(function, torch.ones(1))
    (tensors,) = walked(tmp_path, function).values()
    assert tensors == 3000


def test_attributes_and_hooks_of_a_tensor_are_its_own(tmp_path: Path) -> None:
    tensor = torch.ones(1, requires_grad=True)
    for _ in range(100):
        following = torch.ones(1)
        vars(following)["previous"], tensor = tensor, following
    assert walked(tmp_path, tensor) == {"main.kept": 1, "Tensor.previous": 100}
    hooked = torch.ones(1, requires_grad=True)
    for _ in range(3):
        hooked.register_hook(functools.partial(print, torch.ones(1)))
    assert walked(tmp_path, hooked) == {"main.kept": 1, "Tensor._backward_hooks": 3}


def test_hooks_of_a_module_are_held_by_its_table(tmp_path: Path) -> None:
    module = torch.nn.ReLU()
    for _ in range(3):
        module.register_forward_hook(holding(torch.ones(1)))
    assert walked(tmp_path, module) == {"ReLU._forward_hooks": 3}


def test_attributes_of_a_thread_are_found_in_every_thread(tmp_path: Path) -> None:
    local, is_set, is_walked = threading.local(), threading.Event(), threading.Event()
    local.losses = [torch.ones(1)]

    def work() -> None:
        local.outputs = [torch.ones(1)]
        is_set.set()
        is_walked.wait(MAX_WAIT_S)

    elsewhere = threading.Thread(target=work)
    elsewhere.start()
    is_set.wait(MAX_WAIT_S)
    found = walked(tmp_path, local)
    is_walked.set()
    elsewhere.join()
    assert found == {"main.kept": 2}


def a_cache(maxsize: int | None) -> object:
    @functools.lru_cache(maxsize=maxsize)
    def cached(step: int, *_: object) -> torch.Tensor:
        return torch.ones(1)

    cached(1, torch.ones(1))
    cached(2)
    return cached


@pytest.mark.parametrize("maxsize", [None, 8])
def test_what_a_cache_keeps_is_held_by_its_functions_name(tmp_path: Path, maxsize: int | None) -> None:
    assert walked(tmp_path, a_cache(maxsize)) == {"a_cache.<locals>.cached.cache_info": 3}
    assert walked(tmp_path, [a_cache(maxsize), a_cache(maxsize)]) == {"main.kept": 6}


def test_a_cache_may_stand_for_an_operator_of_a_class(tmp_path: Path) -> None:
    class Clips:
        __getitem__ = a_cache(None)

    assert walked(tmp_path, Clips) == {"a_cache.<locals>.cached.cache_info": 3}


def a_weak_dictionary() -> "tuple[weakref.WeakKeyDictionary[Any, torch.Tensor], Any]":
    key = Trainer()
    return weakref.WeakKeyDictionary({key: torch.ones(1)}), key


def a_context_variable() -> ContextVar[Any]:
    variable: ContextVar[Any] = ContextVar("seen")
    variable.set((1, torch.ones(1)))
    return variable


def a_queue() -> "queue.SimpleQueue[torch.Tensor]":
    waiting: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
    waiting.put(torch.ones(1))
    return waiting


def an_array(order: str) -> "numpy.ndarray[Any, Any]":
    array = numpy.empty((2, 3), dtype=object, order=order)  # type: ignore[call-overload]
    array[1, 0] = torch.ones(1)
    return array


@pytest.mark.parametrize(
    ("value", "tensors"),
    [
        (a_context_variable(), 1),
        (a_queue(), 1),
        (an_array("C"), 1),
        (an_array("F"), 1),
        (numpy.ones(3), 0),
        (iter([torch.ones(1)]), 1),
        (map(str, [torch.ones(1)]), 1),
        (UserList([torch.ones(1)]), 1),
        (UserDict({1: torch.ones(1)}), 1),
        (a_weak_dictionary(), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_names_for_its_contents_holds_them_by_its_own(tmp_path: Path, value: object, tensors: int) -> None:
    assert walked(tmp_path, value) == ({"main.kept": tensors} if tensors else {})
