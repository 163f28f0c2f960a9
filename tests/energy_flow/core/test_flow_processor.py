"""The vectorised flows against a reference that moves one flow of one text at a time."""

import pytest
import torch
from torch import Tensor

from energy_flow.config_parsing import load_config
from energy_flow.core.flow_processor import FlowProcessor, FlowResult
from energy_flow.energy_config import EnergyConfig
from tests.energy_flow.naive_reference import NaiveFlow, moved, naive_flows

SETTINGS = ["lattice.width=5", "lattice.height=4", "lattice.depth=5", "flow.max_flows=24", "training.batch_size=2"]


def _config(*assignments: str) -> EnergyConfig:
    return load_config("debug", assignments=[*SETTINGS, *assignments])


def _processor(config: EnergyConfig) -> FlowProcessor:
    torch.manual_seed(3)
    return FlowProcessor(config)


def _surface(config: EnergyConfig) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(2, config.lattice.height, config.lattice.width, generator=generator)


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
    expected = naive_flows(processor, config, list(surface))
    assert float(expected.landed_share) > 0
    _assert_equal(processor(surface), expected)


@torch.no_grad()
def test_one_step_of_all_rows_is_one_step_of_each() -> None:
    config = _config()
    processor, surface = _processor(config), _surface(config)
    flows, _ = processor.launch(surface)
    together = processor.step(flows)
    for row in range(flows.num_rows):
        alone = moved(processor, config, NaiveFlow(0, flows.position[row], flows.energy[row], flows.hidden[row]))
        torch.testing.assert_close(together.position[row], alone.position)
        torch.testing.assert_close(together.energy[row], alone.energy)
        torch.testing.assert_close(together.hidden[row], alone.hidden)


@torch.no_grad()
def test_a_flow_that_no_longer_travels_stays_and_all_within_their_bound() -> None:
    config = _config()
    processor = _processor(config)
    flows, tally = processor.launch(_surface(config))
    resting = flows.travelling.clone()
    resting[::2] = False
    after, _ = processor.advance(flows._replace(travelling=resting), tally, 0)
    assert torch.equal(after.position[::2], flows.position[::2])
    assert torch.equal(after.energy[::2], flows.energy[::2])
    assert (after.position[1::2] != flows.position[1::2]).any(dim=1).all()
    flows, _ = processor.launch(_surface(config) * 1e6)
    for _ in range(20):
        flows = processor.step(flows)
        assert flows.energy.abs().max() <= config.flow.energy_bound
        assert flows.hidden.abs().max() <= 1


def test_every_parameter_has_a_gradient_that_dropping_landed_flows_leaves_as_it_is() -> None:
    gradients = []
    for lot in ("0", "0.01"):
        config = _config(f"flow.compaction_lot={lot}")
        processor = _processor(config)
        processor(_surface(config)).surface.square().sum().backward()
        gradients.append([parameter.grad for parameter in processor.parameters()])
    for masked, compacted in zip(*gradients, strict=True):
        torch.testing.assert_close(compacted, masked, rtol=1e-4, atol=1e-5)
    config = _config()
    processor = _processor(config)
    processor(_surface(config)).surface.square().sum().backward()
    for name, parameter in processor.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@torch.no_grad()
def test_fewer_flows_than_cells_start_under_the_strongest_cells() -> None:
    config = _config("flow.max_flows=2", "training.batch_size=2")
    surface = torch.zeros(2, config.lattice.height, config.lattice.width)
    surface[0, 2, 3], surface[1, 1, 4] = -5.0, 2.0
    flows, _ = _processor(config).launch(surface)
    assert flows.position[:, :2].tolist() == [[3.0, 2.0], [4.0, 1.0]]
    assert flows.energy[0] < 0 < flows.energy[1]
