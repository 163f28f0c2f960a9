"""Who holds tensors: found by name, with what their graphs keep, and let go again."""

import asyncio
import collections
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from efprof.artifacts.holders import Counted
from efprof.recorder.holders import holders
from efprof.recorder.holders.holders import HolderCount
from efprof.recorder.holders.paths import Held, Node, Place, TimeLimit
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import LineWriter, RankFolder
from tests.recorder.holders import SAVED_IS_TOLD


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time enough to count pytest's own heap on a busy machine."""
    monkeypatch.setattr(holders, "MAX_SECONDS", 20.0)


class Trainer:
    """Keeps every loss."""

    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []
        self.metrics: dict[str, list[torch.Tensor]] = {"loss": []}


class Window:
    """Keeps the last tensors."""

    def __init__(self, most: int) -> None:
        self.window: collections.deque[torch.Tensor] = collections.deque(maxlen=most)


def count(tmp_path: Path) -> dict[tuple[str, str], Counted]:
    sites = Sites(Path(__file__).parents[3], LineWriter(RankFolder(tmp_path), "sources.jsonl").write)
    return {key: held.counted for key, held in HolderCount(sites, lambda *_: None, []).count().items()}


def big_loss(weight: torch.Tensor) -> torch.Tensor:
    """A loss whose graph keeps 40 kB."""
    return (weight * torch.ones(10_000)).square().mean()


# What is counted lies in functions without an assert: pytest rewrites those to call `locals()`, and the count
# leaves functions alone that do.


FITS = "<ipython-input-2-abc>"
TRAINER_IN_A_CELL = """class Trainer:
    def __init__(self):
        self.losses = [torch.ones(8)]
"""


def test_what_the_variables_of_a_notebook_keep_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    vars(main).update(count=lambda: count(tmp_path), torch=torch)
    exec(compile(TRAINER_IN_A_CELL, "<ipython-input-1-abc>", "exec"), vars(main))
    exec(compile("trainer, kept = Trainer(), [torch.ones(8)]\nheld = count()", FITS, "exec"), vars(main))
    held = vars(main)["held"]
    assert held["global", "__main__.kept"].file == FITS
    assert held["attribute", "Trainer.losses"].file == "<ipython-input-1-abc>"


def keep_losses(tmp_path: Path) -> dict[tuple[str, str], Counted]:
    weight = torch.ones(1, requires_grad=True)
    history = [big_loss(weight) for _ in range(3)]
    held = count(tmp_path)
    history.clear()
    return held


@SAVED_IS_TOLD
def test_a_local_list_is_counted_with_its_tensors_bytes_and_graph(tmp_path: Path) -> None:
    held = keep_losses(tmp_path)["local", "keep_losses.history"]
    assert (held.tensors, held.length, held.type) == (3, 3, "list")
    assert held.graph_nodes >= 9
    assert held.graph_bytes > 3 * 40_000
    assert held.file == __file__


def drop_while_running(tmp_path: Path) -> list[object]:
    kept, listed = torch.ones(3), [torch.ones(3)]
    refs = weakref.ref(kept), weakref.ref(listed[0])
    count(tmp_path)
    del kept
    listed.clear()
    return [ref() for ref in refs]  # this frame still runs, and might keep a snapshot of its locals


def test_the_count_keeps_nothing_alive_nor_does_a_counted_frame(tmp_path: Path) -> None:
    assert drop_while_running(tmp_path) == [None, None]


def keep_views(tmp_path: Path) -> dict[tuple[str, str], Counted]:
    """Made without gradients, of a parameter that an optimizer has stepped since."""
    weight = torch.ones(100, 100, requires_grad=True)
    with torch.no_grad():
        views = [weight[0]]
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="no_grad"):
        assert views[0].grad_fn
    return count(tmp_path)


def test_a_view_of_which_torch_tells_no_graph_is_counted_all_the_same(tmp_path: Path) -> None:
    assert keep_views(tmp_path)["local", "keep_views.views"].tensors == 1


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="from 3.13 on, locals() returns a copy")
def test_a_dict_of_locals_that_the_program_holds_is_not_touched(tmp_path: Path) -> None:
    def train(rate: float) -> dict[str, object]:
        settings = locals()
        later = torch.ones(1) * rate
        count(tmp_path)
        del later
        return settings

    assert train(0.1) == {"rate": 0.1, "tmp_path": tmp_path}


def count_beside_vars(tmp_path: Path) -> dict[tuple[str, str], Counted]:
    arguments, model = vars(Trainer()), torch.nn.ReLU()
    model.eval()
    kept = torch.ones(3)
    held = count(tmp_path)
    del arguments, model, kept
    return held


def test_a_function_that_asks_for_another_objects_variables_or_evaluates_a_model_is_counted(tmp_path: Path) -> None:
    assert ("local", "count_beside_vars.kept") in count_beside_vars(tmp_path)


class Lazy:
    """Loads something costly at the first touch of any attribute."""

    def __init__(self) -> None:
        self.tensor = torch.ones(3)

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"the count asked for {name}")


class Awaited(asyncio.Future[None]):
    """Python hides the dict that its attributes lie in."""


def keep_odd_objects(tmp_path: Path) -> dict[tuple[str, str], Counted]:
    losses, loop, proxy = [torch.ones(3)], asyncio.new_event_loop(), Lazy()
    future = Awaited(loop=loop)
    try:
        return count(tmp_path)
    finally:
        loop.close()
        del losses, future, proxy


def test_a_lazy_proxy_is_not_woken_and_what_hides_its_attributes_is_passed_over(tmp_path: Path) -> None:
    assert {("attribute", "Lazy.tensor"), ("local", "keep_odd_objects.losses")} <= keep_odd_objects(tmp_path).keys()


class Bank(torch.nn.Module):
    """Keeps keys in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(20))
        self.register_buffer("mask_1", torch.zeros(10))
        self.scale = torch.nn.Parameter(torch.ones(5))


def count_bank(tmp_path: Path) -> dict[tuple[str, str], Counted]:
    bank = Bank()
    held = count(tmp_path)
    del bank
    return held


def test_a_modules_tensors_are_named_as_the_program_does_but_those_that_are_one_of_many(tmp_path: Path) -> None:
    held = count_bank(tmp_path)
    assert held["attribute", "Bank._buffers"].tensors == 1
    keys = held["attribute", "Bank.keys"]
    assert (keys.owner, keys.name, keys.type, keys.tensor_bytes) == ("Bank", "keys", "Tensor", 80)
    assert held["attribute", "Bank.scale"].tensor_bytes == 20
    assert ("attribute", "Bank._parameters") not in held


def count_deques(tmp_path: Path) -> dict[tuple[str, str], Counted]:
    limited, endless = collections.deque[torch.Tensor](maxlen=500), collections.deque[torch.Tensor]()
    first, second = Window(300), Window(400)
    for kept in (limited, endless, first.window, second.window):
        kept.append(torch.ones(10_000))
    return count(tmp_path)


def test_a_deque_is_counted_with_its_limit_and_several_of_one_name_with_what_they_hold_together(
    tmp_path: Path,
) -> None:
    held = {one.name: (one.max_length, one.tensors) for one in count_deques(tmp_path).values()}
    assert held["limited"] == (500, 1)
    assert held["endless"] == (0, 1)
    assert held["window"] == (700, 2)


def held_by(*tensors: torch.Tensor, nodes: dict[Any, Node] | None = None) -> Counted:
    """What a variable with these tensors would hold."""
    held = Held(Place("kept", "local", "main", "kept", None), [])
    held.add(list(tensors))
    held.add_graphs({} if nodes is None else nodes, TimeLimit(float("inf")))
    return held.counted


def test_a_graph_is_told_from_one_that_was_built_before_it_by_the_numbers_of_its_nodes() -> None:
    weight = torch.ones(3, requires_grad=True)
    earlier, later = (held_by((weight * 2).sum()).graph_span for _ in range(2))
    assert earlier is not None
    assert later is not None
    assert earlier[0] < earlier[1] < later[0] < later[1]
    assert held_by(weight).graph_span is None


def test_a_checkpoint_is_not_computed_again() -> None:
    calls = []

    def block(value: torch.Tensor) -> torch.Tensor:
        calls.append(value)
        return value.square().sin()

    result = checkpoint(block, torch.ones(1000, requires_grad=True), use_reentrant=False).sum()
    held = held_by(result)
    assert held.graph_nodes == 4
    assert len(calls) == 1, "the forward pass alone"


@SAVED_IS_TOLD
def test_what_the_program_packed_a_saved_tensor_into_is_counted_as_it_is() -> None:
    unpacked = []

    def pack(tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
        return "half", tensor.half()

    def unpack(packed: Any) -> torch.Tensor:
        unpacked.append(packed)
        return torch.Tensor(packed[1].float())

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        result = (torch.ones(1000, requires_grad=True) + 1).square().sum()
    assert held_by(result).graph_bytes == 2000 + 4000, "what was packed, and the input"
    assert unpacked == []


def test_what_torch_func_puts_around_a_tensor_has_no_storage_and_ends_no_count() -> None:
    counted = []

    def loss_of(weight: torch.Tensor) -> torch.Tensor:
        loss = (weight + 1).square().sum()
        counted.append(held_by(loss).graph_nodes)
        return loss

    torch.func.grad(loss_of)(torch.ones(1000))
    assert counted == [4]


def summed_square() -> torch.Tensor:
    return (torch.ones(1000, requires_grad=True) + 2).square().sum()


@SAVED_IS_TOLD
def test_a_graph_that_a_backward_pass_has_freed_keeps_its_input_and_the_gradient() -> None:
    result = summed_square()
    assert held_by(result).graph_bytes == 8000
    result.backward()
    assert held_by(result).graph_bytes == 8000, "the input, and its gradient"


class Doubled(torch.autograd.Function):
    """An operation of the program's own."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(value * 1)
        return value * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 2


@SAVED_IS_TOLD
def test_what_an_operation_of_the_programs_own_saves_is_counted_until_it_is_freed() -> None:
    doubled: Callable[[torch.Tensor], torch.Tensor] = Doubled.apply
    result = doubled(torch.ones(1000, requires_grad=True) + 1).sum()
    assert held_by(result).graph_bytes == 2 * 4000
    result.backward(torch.ones(()), retain_graph=False)
    assert held_by(result).graph_bytes == 2 * 4000, "the input, and its gradient"


@SAVED_IS_TOLD
def test_a_graph_that_several_holders_share_counts_for_each() -> None:
    shared, nodes = summed_square(), dict[Any, Node]()
    for _ in range(2):
        held = held_by(shared + 1, nodes=nodes)
        assert (held.graph_nodes, held.graph_bytes) == (5, 8000)
