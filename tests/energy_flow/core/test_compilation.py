"""The compiled flow step: the same numbers, compiled a few times and no more, and an error that helps."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from energy_flow.config_parsing import load_config
from energy_flow.core.flow_processor import FlowProcessor
from energy_flow.errors import EnergyFlowError

SETTINGS = ["flow.max_steps=12", "flow.compaction_lot=0.1", "lattice.depth=9", "lattice.width=6", "lattice.height=6"]
_TORCH_COMPILE = torch.compile

# torch hides this warning while it compiles by another way of showing it, which comes too late for an error.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


@pytest.fixture(autouse=True)
def forget_compiled_code() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that were made; they run uncompiled, for which no compiler is needed."""
    made: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Callable[..., Any]:
        made.append(graph)
        run: Callable[..., Any] = graph.forward
        return run

    monkeypatch.setattr(torch, "compile", partial(_TORCH_COMPILE, backend=keep))
    return made


def _processor(*assignments: str) -> FlowProcessor:
    torch.manual_seed(3)
    return FlowProcessor(load_config("debug", assignments=[*SETTINGS, *assignments]))


def _gradient(processor: FlowProcessor, batch: int) -> tuple[Tensor, Tensor]:
    """The output surface and the gradient of the input surface."""
    surface = torch.randn(batch, 6, 6, generator=torch.Generator().manual_seed(batch), requires_grad=True)
    landed = processor(surface).surface
    landed.square().sum().backward()
    return landed.detach(), surface.grad


def test_rows_that_grow_fewer_and_batches_of_other_sizes_need_no_new_graph(graphs: list[Any]) -> None:
    processor = _processor("runtime.compile=true")
    _gradient(processor, 8)
    assert len(graphs) == 2  # positions have no gradient in the first flow step, and have one from then on
    for batch in (8, 5, 8, 3):
        _gradient(processor, batch)
    assert len(graphs) == 2


@pytest.mark.parametrize("checkpoint_steps", [0, 3])
def test_the_graph_of_a_flow_step_computes_what_the_step_does(graphs: list[Any], checkpoint_steps: int) -> None:
    setting = f"flow.checkpoint_steps={checkpoint_steps}"
    for value, expected in zip(
        _gradient(_processor("runtime.compile=true", setting), 8), _gradient(_processor(), 8), strict=True
    ):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)
    assert graphs


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # torch's own, while it loads its compiler
def test_compiled_flow_steps_give_the_numbers_of_uncompiled_ones() -> None:
    try:
        compiled = _gradient(_processor("runtime.compile=true"), 8)
    except EnergyFlowError as error:
        pytest.skip(f"needs a C++ compiler: {error}")
    for value, expected in zip(compiled, _gradient(_processor(), 8), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-4)


def test_a_machine_without_a_compiler_is_told_which_setting_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(graph: Any, inputs: Any) -> Callable[..., Any]:
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(torch, "compile", partial(_TORCH_COMPILE, backend=missing))
    with pytest.raises(
        EnergyFlowError, match=r"runtime\.compile=true.*No working C\+\+ compiler.*runtime\.compile=false"
    ):
        _gradient(_processor("runtime.compile=true"), 8)


def test_a_python_that_torch_cannot_compile_for_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("torch.compile is not supported on this Python")

    monkeypatch.setattr(torch, "compile", unsupported)
    with pytest.raises(EnergyFlowError, match=r"not supported on this Python.*runtime\.compile=false"):
        _processor("runtime.compile=true")
