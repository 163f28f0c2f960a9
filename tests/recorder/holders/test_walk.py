"""Which holders a walk from one variable finds, whatever lies in between."""

import functools
import itertools
import queue
import subprocess
import sys
import time
import weakref
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from efprof.recorder.holders.paths import TimeLimit
from efprof.recorder.holders.variables import is_plain_data
from efprof.recorder.holders.walk import Walk
from efprof.recorder.launch.in_code import Recording
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import LineWriter, RankFolder


class Trainer:
    """Keeps every loss."""

    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []


def walked(tmp_path: Path, value: object) -> dict[str, int]:
    """The tensors that each holder has, by path, where a variable `main.kept` has this value."""
    sites = Sites(Path(__file__).parents[3], LineWriter(RankFolder(tmp_path), "sources.jsonl").write)
    walk = Walk(sites, TimeLimit(time.thread_time() + 20), lambda *_: None)
    walk.visit_variable("local", "main", __file__, "kept", value)
    return {path: held.counted.tensors for (_, path), held in walk.held.items() if held.counted.tensors}


def with_default(*, kept: tuple[torch.Tensor, ...] = (torch.ones(1),)) -> None:
    """Keeps what no call gives it."""


class Taking:
    """Has a method that keeps a tensor from call to call."""

    def take(self, kept: tuple[torch.Tensor, ...] = (torch.ones(1),)) -> None:
        """Does nothing."""


def holding(kept: object) -> Callable[[], object]:
    return lambda: kept


class Picking(torch.nn.Module):
    """Lists some of its parts, for a look at them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(3))))
        self.picked = [one for one in self.body.modules() if isinstance(one, torch.nn.Linear)]


def test_a_list_of_a_module_s_parts_does_not_hold_what_these_have(tmp_path: Path) -> None:
    model = Picking()
    for one in model.picked:
        one.register_forward_pre_hook(functools.partial(print, torch.ones(1)))
    assert walked(tmp_path, model) == {"Linear.weight": 3, "Linear.bias": 3, "partial.args": 3}
    model.body = None  # type: ignore[assignment]
    assert walked(tmp_path, model)["Picking.picked"] == 9, "what only the list knows is the list's"


@pytest.mark.parametrize("hold", [holding, lambda one: Sample(one).show, lambda one: functools.partial(print, one)])
def test_a_list_holds_what_each_of_its_functions_keeps(tmp_path: Path, hold: Callable[[torch.Tensor], object]) -> None:
    assert walked(tmp_path, [hold(torch.ones(1)) for _ in range(100)]) == {"main.kept": 100}


@dataclass(slots=True)
class Slotted:
    """Has no `__dict__`."""

    losses: list[torch.Tensor]
    unset: int = field(init=False)


class OfNoModule(type):
    """As types that are made in C without a dot in their name, SWIG's among them."""

    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise AttributeError("__module__")


class Odd(metaclass=OfNoModule):
    """Keeps a tensor."""

    def __init__(self) -> None:
        self.kept = [torch.ones(1)]


def a_trainer() -> Trainer:
    trainer = Trainer()
    trainer.losses.append(torch.ones(1))
    return trainer


def a_hooked_module() -> torch.nn.Module:
    module = torch.nn.ReLU()
    for _ in range(3):
        module.register_forward_hook(holding(torch.ones(1)))
    return module


NAMED: dict[str, tuple[Callable[[], object], dict[str, int]]] = {
    "slots": (lambda: Slotted([torch.ones(1)]), {"Slotted.losses": 1}),
    "a type of no module": (Odd, {"Odd.kept": 1}),
    "the default of a function": (lambda: with_default, {"with_default.kept": 1}),
    "the default of a method": (lambda: Taking, {"Taking.take.kept": 1}),
    "hooks of a module": (a_hooked_module, {"ReLU._forward_hooks": 3}),
    "what several functions of a list share": (lambda: [holding(a_trainer())] * 2, {"Trainer.losses": 1}),
    "each of its kind in a list": (
        lambda: [a_trainer(), holding(torch.ones(1))],
        {"Trainer.losses": 1, "holding.kept": 1},
    ),
    "each of its kind in a dictionary": (
        lambda: {0: a_trainer(), 1: holding(torch.ones(1))},
        {"Trainer.losses": 1, "holding.kept": 1},
    ),
    "records in a list": (lambda: [SimpleNamespace(loss=torch.ones(1)) for _ in range(3)], {"main.kept": 3}),
    "tensors between numbers": (lambda: [(step, torch.ones(1), "train") for step in range(3)], {"main.kept": 3}),
}


@pytest.mark.parametrize("place", NAMED)
def test_tensors_are_told_by_the_name_that_the_program_has_for_their_place(place: str, tmp_path: Path) -> None:
    make, expected = NAMED[place]
    assert walked(tmp_path, make()) == expected


def test_what_the_recording_itself_keeps_is_no_holder_of_the_program_s(tmp_path: Path) -> None:
    recording = Recording(tmp_path, None, is_ours=False)
    vars(recording)["rows"] = [torch.ones(1)]
    assert walked(tmp_path, [recording, Trainer()]) == {}


class Sample:
    """Of a data set."""

    def __init__(self, label: object) -> None:
        self.label = label

    def show(self) -> None:
        """Does nothing."""


@pytest.mark.parametrize(
    "odd",
    [
        SimpleNamespace(loss=torch.ones(1)),
        (torch.ones(1),),
        Sample([torch.ones(1)]),
        holding(torch.ones(1)),
    ],
    ids=lambda odd: type(odd).__name__,
)
def test_one_tensor_in_a_large_data_set_is_found_wherever_it_lies(odd: object, tmp_path: Path) -> None:
    for make in (dict, lambda text, label: (text, label), lambda text, label: Sample(label)):
        samples: list[object] = [make(text="a", label=[step]) for step in range(3000)]
        samples[1500] = make(text="a", label=[odd])
        assert sum(walked(tmp_path, samples).values()) == 1
        assert sum(walked(tmp_path, {str(step): sample for step, sample in enumerate(samples)}).values()) == 1


@pytest.mark.parametrize("sample", [1, {"text": "a", "tokens": [1, (3, None)]}])
def test_samples_of_numbers_and_texts_are_passed_over_at_once(sample: object) -> None:
    assert is_plain_data([sample] * 3)
    assert not is_plain_data([[Sample(1)]]), "of which it is not known what they hold"


def test_rows_of_a_container_are_counted_once_and_their_tensors_each(tmp_path: Path) -> None:
    rows = [(torch.ones(1), step, torch.ones(1)) for step in range(3000)]
    assert walked(tmp_path, rows) == {"main.kept": 6000}
    assert walked(tmp_path, [*rows, *rows]) == {"main.kept": 6000}


class Node:
    """An element of a tree."""

    def __init__(self, others: "list[Node]") -> None:
        self.value, self.others = torch.ones(1), others


def test_what_hangs_on_a_variable_is_followed_however_deep_it_is(tmp_path: Path) -> None:
    pair, chain, tree, function = (), iter(()), Node([]), holding(torch.ones(1))
    for _ in range(3000):
        pair, chain = (pair, torch.ones(1)), itertools.chain(chain, [torch.ones(1)])
        tree, function = Node([tree]), holding((function, torch.ones(1)))
    assert walked(tmp_path, pair) == {"main.kept": 3000}
    assert walked(tmp_path, chain) == {"main.kept": 3000}
    assert walked(tmp_path, tree) == {"Node.value": 3001}
    assert walked(tmp_path, function) == {"holding.kept": 3001}


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


def in_a_queue(tensor: torch.Tensor) -> "queue.SimpleQueue[torch.Tensor]":
    waiting: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
    waiting.put(tensor)
    return waiting


@pytest.mark.parametrize(
    "hold",
    [
        in_a_queue,
        lambda one: map(str, [one]),
        lambda one: UserDict({1: one}),
        lambda one: weakref.WeakKeyDictionary({Trainer: one}),
    ],
)
def test_what_has_no_names_for_its_contents_holds_them_by_its_own(
    hold: Callable[[torch.Tensor], object], tmp_path: Path
) -> None:
    assert walked(tmp_path, hold(torch.ones(1))) == {"main.kept": 1}


class Odd(list[torch.Tensor]):
    """Tells no length."""

    def __len__(self) -> int:
        raise RuntimeError("not loaded")


def test_no_method_of_the_programs_own_is_called_for_a_containers_length(tmp_path: Path) -> None:
    assert walked(tmp_path, Odd([torch.ones(1)])) == {"main.kept": 1}


LARGE = """
import os, re, signal, time
from pathlib import Path
from efprof.recorder.holders.paths import TimeLimit
from efprof.recorder.holders.walk import Walk
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import LineWriter, RankFolder

def own_kilobytes():
    return int(re.search(r"Private_Dirty: +(\\d+)", Path("/proc/self/smaps_rollup").read_text())[1])

names = [f"/data/images/train/{number:060}.jpg" for number in range(600_000)]
kept = [names, tuple(names), dict.fromkeys(names, names[-1]), [(name, 7) for name in names]]
child = os.fork()
if not child:
    time.sleep(600)
before = own_kilobytes()
walk = Walk(Sites(Path(), LineWriter(RankFolder(Path()), "sources.jsonl").write), TimeLimit(10**9), lambda *_: None)
for number, value in enumerate(kept):
    walk.visit_variable("local", "main", "main.py", f"kept{number}", value)
print(own_kilobytes() - before)
os.kill(child, signal.SIGKILL)
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Only Linux tells what a process has alone.")
def test_a_walk_copies_nothing_of_large_data_that_forked_workers_share(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LARGE], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 8_000  # of 130,000
