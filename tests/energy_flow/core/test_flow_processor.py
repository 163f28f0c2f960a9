"""The vectorised flows against a reference that moves one flow of one text at a time."""

import math

import pytest
import torch
from torch import Tensor

from energy_flow.config_parsing import load_config
from energy_flow.core.flow_processor import FlowProcessor, FlowResult
from energy_flow.energy_config import EnergyConfig

SETTINGS = ["lattice.width=5", "lattice.height=4", "lattice.depth=5", "flow.max_flows=24", "training.batch_size=2"]


def _config(*assignments: str) -> EnergyConfig:
    return load_config("debug", assignments=[*SETTINGS, *assignments])


def _processor(config: EnergyConfig) -> FlowProcessor:
    torch.manual_seed(3)
    return FlowProcessor(config)


def _surface(config: EnergyConfig) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(2, config.lattice.height, config.lattice.width, generator=generator)


def _reference(processor: FlowProcessor, config: EnergyConfig, surface: Tensor) -> FlowResult:
    """What the processor must compute: loops over texts and flows, one neuron and one carrier call per flow."""
    flow, lattice = config.flow, config.lattice
    landed = torch.zeros_like(surface)
    flows = [
        _started(processor, config, surface, text, int(cell))
        for text in range(len(surface))
        for cell in surface[text].flatten().abs().topk(config.flows_per_text).indices
    ]
    num_flows, num_landed, streak, steps = len(flows), 0, 0, 0
    while flows and steps < flow.max_steps and streak < flow.convergence_patience:
        steps += 1
        flows = [_moved(processor, config, one) for one in flows]
        for text, position, energy, _ in flows:
            if position[2] >= lattice.depth - 1:
                num_landed += 1
                _spread(landed[text], position, energy)
        flows = [one for one in flows if one[1][2] < lattice.depth - 1]
        streak = streak + 1 if num_landed >= flow.convergence_threshold * num_flows else 0
    return FlowResult(landed, torch.tensor(num_landed / num_flows), torch.tensor(float(steps)))


Flow = tuple[int, list[float], float, Tensor]


def _started(processor: FlowProcessor, config: EnergyConfig, surface: Tensor, text: int, cell: int) -> Flow:
    width, bound = config.lattice.width, config.flow.energy_bound
    row, column = divmod(cell, width)
    energy = bound * math.tanh(float(surface[text, row, column]) / bound)
    position = [float(column), float(row), 0.0]
    features = torch.tensor([energy / bound, *_place(config, position)])
    return text, position, energy, torch.tanh(processor.start(features))


def _moved(processor: FlowProcessor, config: EnergyConfig, one: Flow) -> Flow:
    text, position, energy, hidden = one
    cell_state = _interpolated(processor.lattice.cells, position)
    signal = processor.neuron(cell_state[None], torch.tensor([_place(config, position)]))
    carried = processor.carrier(signal, torch.tensor([energy]), hidden[None])
    last = (config.lattice.width - 1, config.lattice.height - 1, config.lattice.depth - 1)
    moved = [
        min(max(place + float(by), 0.0), float(end))
        for place, by, end in zip(position, carried.displacement[0], last, strict=True)
    ]
    return text, moved, float(carried.energy[0]), carried.hidden[0]


def _place(config: EnergyConfig, position: list[float]) -> list[float]:
    sizes = (config.lattice.width, config.lattice.height, config.lattice.depth)
    return [2 * place / (size - 1) - 1 for place, size in zip(position, sizes, strict=True)]


def _interpolated(cells: Tensor, position: list[float]) -> Tensor:
    state = torch.zeros(cells.shape[0])
    for z, share_z in _neighbours(position[2], cells.shape[1]):
        for y, share_y in _neighbours(position[1], cells.shape[2]):
            for x, share_x in _neighbours(position[0], cells.shape[3]):
                state = state + share_x * share_y * share_z * cells[:, z, y, x]
    return state


def _spread(surface: Tensor, position: list[float], energy: float) -> None:
    for y, share_y in _neighbours(position[1], surface.shape[0]):
        for x, share_x in _neighbours(position[0], surface.shape[1]):
            surface[y, x] += energy * share_x * share_y


def _neighbours(place: float, size: int) -> list[tuple[int, float]]:
    first = math.floor(place)
    return [(first, 1 - (place - first)), (min(first + 1, size - 1), place - first)]


def _assert_equal(result: FlowResult, expected: FlowResult) -> None:
    torch.testing.assert_close(result.surface, expected.surface, rtol=1e-4, atol=1e-5)
    assert float(result.landed_share) == pytest.approx(float(expected.landed_share))
    assert float(result.num_steps) == float(expected.num_steps)


@torch.no_grad()
@pytest.mark.parametrize(
    "assignments",
    [
        [],
        ["flow.compaction_lot=0"],
        ["flow.compaction_lot=0.01"],
        ["flow.max_steps=5"],
        ["flow.convergence_threshold=0.3", "flow.convergence_patience=1"],
        ["lattice.height=8", "flow.max_flows=6", "flow.max_shift=3"],
    ],
)
def test_all_flows_at_once_do_what_one_flow_at_a_time_does(assignments: list[str]) -> None:
    config = _config("flow.max_steps=20", *assignments)
    processor, surface = _processor(config), _surface(config)
    expected = _reference(processor, config, surface)
    assert float(expected.landed_share) > 0
    _assert_equal(processor(surface), expected)


@torch.no_grad()
def test_one_step_of_all_rows_is_one_step_of_each() -> None:
    config = _config()
    processor, surface = _processor(config), _surface(config)
    flows = processor.launch(surface)
    moved = processor.step(flows)
    for row in range(flows.num_rows):
        one = (
            int(flows.text[row]),
            [float(place) for place in flows.position[row]],
            float(flows.energy[row]),
            flows.hidden[row],
        )
        _, position, energy, hidden = _moved(processor, config, one)
        torch.testing.assert_close(moved.position[row], torch.tensor(position))
        assert float(moved.energy[row]) == pytest.approx(energy, rel=1e-4, abs=1e-6)
        torch.testing.assert_close(moved.hidden[row], hidden)


def test_dropping_landed_flows_leaves_the_gradients_as_they_are() -> None:
    gradients = []
    for lot in ("0", "0.01"):
        config = _config(f"flow.compaction_lot={lot}")
        processor = _processor(config)
        processor(_surface(config)).surface.square().sum().backward()
        gradients.append([parameter.grad for parameter in processor.parameters()])
    for masked, compacted in zip(*gradients, strict=True):
        torch.testing.assert_close(compacted, masked, rtol=1e-4, atol=1e-5)


def test_every_parameter_of_the_flows_has_a_gradient() -> None:
    config = _config()
    processor = _processor(config)
    processor(_surface(config)).surface.square().sum().backward()
    for name, parameter in processor.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@torch.no_grad()
def test_energies_stay_within_their_bound_whatever_comes_in() -> None:
    config = _config()
    processor = _processor(config)
    flows = processor.launch(_surface(config) * 1e6)
    for _ in range(20):
        flows = processor.step(flows)
        assert flows.energy.abs().max() <= config.flow.energy_bound
        assert flows.hidden.abs().max() <= 1


@torch.no_grad()
def test_fewer_flows_than_cells_start_under_the_strongest_cells() -> None:
    config = _config("flow.max_flows=2", "training.batch_size=2")
    surface = torch.zeros(2, config.lattice.height, config.lattice.width)
    surface[0, 2, 3], surface[1, 1, 4] = -5.0, 2.0
    flows = _processor(config).launch(surface)
    assert flows.position[:, :2].tolist() == [[3.0, 2.0], [4.0, 1.0]]
    assert flows.energy[0] < 0 < flows.energy[1]
