"""What graphs keep is counted, and no code of the program is run for it."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from efprof.recorder.holders.paths import Clock, Held, Nodes


def held_by(*tensors: torch.Tensor) -> Held:
    """What a variable with these tensors would hold."""
    held = Held(path="kept", scope="local", owner="main", name="kept", file=None, type="list")
    held.add(list(tensors))
    held.add_graphs(Nodes(), Clock(float("inf")))
    return held


def test_a_checkpoint_is_not_computed_again() -> None:
    calls = []

    def block(value: torch.Tensor) -> torch.Tensor:
        calls.append(value)
        return value.square().sin()

    result = checkpoint(block, torch.ones(1000, requires_grad=True), use_reentrant=False).sum()
    held = held_by(result)
    assert held.graph_nodes == 4
    assert len(calls) == 1, "the forward pass alone"


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


def test_what_an_operation_of_the_programs_own_saves_is_counted_until_it_is_freed() -> None:
    doubled: Callable[[torch.Tensor], torch.Tensor] = Doubled.apply
    result = doubled(torch.ones(1000, requires_grad=True) + 1).sum()
    assert held_by(result).graph_bytes == 2 * 4000
    result.backward(torch.ones(()), retain_graph=False)
    assert held_by(result).graph_bytes == 2 * 4000, "the input, and its gradient"


def test_a_graph_that_several_holders_share_counts_for_each() -> None:
    shared = summed_square()
    nodes, clock = Nodes(), Clock(float("inf"))
    for _ in range(2):
        held = Held(path="kept", scope="local", owner="main", name="kept", file=None, type="list")
        held.add([shared + 1])
        held.add_graphs(nodes, clock)
        assert held.graph_nodes == 5
        assert held.graph_bytes == 8000
