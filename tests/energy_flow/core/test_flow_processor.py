"""How flows start, rest, are computed anew and compiled; `test_model.py` has their numbers, one flow at a time."""

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

from energy_flow.config_parsing import load_config
from energy_flow.core import flow_processor
from energy_flow.core.flow_processor import FlowProcessor
from energy_flow.errors import EnergyFlowError

SETTINGS = ["flow.max_steps=12", "flow.compaction_lot=0.1", "lattice.depth=9", "lattice.width=6", "lattice.height=6"]
COMPILED = "runtime.compile=true"
_TORCH_COMPILE = torch.compile

# torch hides this warning while it compiles by another way of showing it, which comes too late for an error.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that were made; they run uncompiled, for which no compiler is needed."""
    made: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Callable[..., Any]:
        made.append(graph)
        run: Callable[..., Any] = graph.forward
        return run

    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", partial(_TORCH_COMPILE, backend=keep))
    return made


def _processor(*assignments: str) -> FlowProcessor:
    torch.manual_seed(3)
    return FlowProcessor(load_config("debug", assignments=[*SETTINGS, *assignments]))


def _run(processor: FlowProcessor, batch: int = 8) -> list[Tensor]:
    """The output surface, and the gradients of the input surface and of all parameters."""
    surface = torch.randn(batch, 6, 6, generator=torch.Generator().manual_seed(batch), requires_grad=True)
    landed = processor(surface).surface
    landed.square().sum().backward()
    return [landed.detach(), surface.grad, *(parameter.grad for parameter in processor.parameters())]


def _assert_close(values: list[Tensor], expected: list[Tensor], *, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    for value, other in zip(values, expected, strict=True):
        torch.testing.assert_close(value, other, rtol=rtol, atol=atol)


@torch.no_grad()
def test_fewer_flows_than_cells_start_under_the_strongest_cells() -> None:
    surface = torch.zeros(2, 6, 6)
    surface[0, 2, 3], surface[1, 1, 4] = -5.0, 2.0
    flows, _ = _processor("flow.max_flows=2", "training.batch_size=2").launch(surface)
    assert flows.position[:, :2].tolist() == [[3.0, 2.0], [4.0, 1.0]]
    assert flows.energy[0] < 0 < flows.energy[1]


@torch.no_grad()
def test_a_flow_that_no_longer_travels_stays_and_all_within_their_bound() -> None:
    processor, surface = _processor(), torch.randn(2, 6, 6)
    flows, tally = processor.launch(surface)
    resting = flows.travelling.clone()
    resting[::2] = False
    after, _ = processor.advance(flows._replace(travelling=resting), tally, 0)
    assert torch.equal(after.position[::2], flows.position[::2])
    assert torch.equal(after.energy[::2], flows.energy[::2])
    assert (after.position[1::2] != flows.position[1::2]).any(dim=1).all()
    flows, _ = processor.launch(surface * 1e6)
    for _ in range(20):
        flows = processor.step(flows)
        assert flows.energy.abs().max() <= processor.config.energy_bound
        assert flows.hidden.abs().max() <= 1


class _SlowCounts:
    """Counts that arrive some steps late, as from a busy GPU; it notes how many were asked for."""

    num_pushed = 0

    def __init__(self) -> None:
        self._under_way: deque[tuple[None, Any]] = deque()

    def push(self, tag: None, tensor: Tensor) -> None:
        type(self).num_pushed += 1
        self._under_way.append((tag, tensor.detach().numpy()))

    def arrived(self) -> list[tuple[None, Any]]:
        return [self._under_way.popleft()] if len(self._under_way) > 2 else []


def test_backward_asks_for_no_counts_since_others_would_have_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _run(_processor("flow.compaction_lot=0"))
    monkeypatch.setattr(flow_processor, "LateRead", _SlowCounts)
    monkeypatch.setattr(_SlowCounts, "num_pushed", 0)
    gradients = _run(_processor("flow.checkpoint_steps=2"))
    assert _SlowCounts.num_pushed == 6
    _assert_close(gradients, expected)


def _peak_bytes(*assignments: str) -> int:
    processor = _processor("flow.compaction_lot=0", "flow.convergence_threshold=1", *assignments)
    with torch.profiler.profile(profile_memory=True) as profiler:
        _run(processor)
    changes = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in changes))


def test_computing_steps_anew_lowers_the_peak_of_forward_and_backward() -> None:
    assert _peak_bytes("flow.checkpoint_steps=3") < 0.6 * _peak_bytes()


def test_rows_that_grow_fewer_and_batches_of_other_sizes_need_no_new_graph(graphs: list[Any]) -> None:
    processor = _processor(COMPILED)
    for batch in (8, 5, 3):
        _run(processor, batch)
        # Positions have no gradient in the first flow step, and have one from then on.
        assert len(graphs) == 2


def test_the_graph_of_a_flow_step_computes_what_the_step_does_anew_too(graphs: list[Any]) -> None:
    _assert_close(_run(_processor(COMPILED, "flow.checkpoint_steps=3")), _run(_processor()))
    assert graphs


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # torch's own, while it loads its compiler
def test_compiled_flow_steps_give_the_numbers_of_uncompiled_ones() -> None:
    torch.compiler.reset()
    try:
        compiled = _run(_processor(COMPILED))
    except EnergyFlowError as error:
        pytest.skip(f"needs a C++ compiler: {error}")
    _assert_close(compiled, _run(_processor()), rtol=1e-3, atol=1e-4)


def test_a_machine_that_cannot_compile_is_told_which_setting_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> Callable[..., Any]:
        raise RuntimeError("No working C++ compiler found")

    told = pytest.raises(
        EnergyFlowError, match=r"runtime\.compile=true.*No working C\+\+ compiler.*runtime\.compile=false"
    )
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", partial(_TORCH_COMPILE, backend=fails))
    processor = _processor(COMPILED)
    with told:  # by the first step
        _run(processor)
    monkeypatch.setattr(torch, "compile", fails)
    with told:  # at once
        _processor(COMPILED)
