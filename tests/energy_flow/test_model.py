"""The whole model against a reference that moves one flow of one text at a time."""

import pytest
import torch

from energy_flow.config_parsing import load_config
from energy_flow.data.batch import Batch
from energy_flow.energy_config import EnergyConfig
from energy_flow.model import EnergyFlowModel, Losses, build_model
from energy_flow.text_bridge.tokens import encode
from tests.energy_flow.naive_reference import naive_losses

SIZES = ["lattice.width=6", "lattice.height=5", "lattice.depth=5", "flow.max_flows=36", "training.batch_size=3"]
# Words differ in length, so that a mean over all tokens is no mean of the texts' means.
WORDS = ["a", "seven flows", "a lattice of many cells"]


def _batch(config: EnergyConfig) -> Batch:
    generator = torch.Generator().manual_seed(1)
    embeddings = torch.nn.functional.normalize(torch.randn(2, 3, 768, generator=generator), dim=-1)
    tokens = torch.stack([torch.from_numpy(encode(word, config.bridge.max_bytes)) for word in WORDS])
    return Batch(embeddings[0], embeddings[1], tokens, tokens.flip(0))


def _gradients(model: EnergyFlowModel, losses: Losses) -> dict[str, torch.Tensor]:
    model.zero_grad()
    losses.total.backward()  # type: ignore[no-untyped-call]  # torch has no types there
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize(
    "assignments",
    [
        [],
        ["flow.compaction_lot=0"],
        ["flow.compaction_lot=0.01"],
        ["flow.checkpoint_steps=1"],
        ["flow.checkpoint_steps=3"],
        ["flow.checkpoint_steps=100"],
        ["flow.max_steps=5"],
        ["flow.convergence_threshold=0.4", "flow.convergence_patience=1"],
        ["lattice.height=8", "flow.max_flows=6", "flow.max_shift=3"],
    ],
    ids=" ".join,
)
def test_losses_and_gradients_are_those_of_one_flow_and_one_text_at_a_time(assignments: list[str]) -> None:
    config = load_config("debug", assignments=[*SIZES, *assignments])
    model, batch = build_model(config), _batch(config)
    losses, expected = model(batch), naive_losses(model, config, batch)
    assert float(expected.landed_share) > 0
    for name, value, naive in zip(Losses._fields, losses, expected, strict=True):
        torch.testing.assert_close(value, naive, rtol=1e-4, atol=1e-5, msg=name)
    expected_gradients = _gradients(model, expected)
    gradients = _gradients(model, losses)
    assert gradients.keys() == expected_gradients.keys() == dict(model.named_parameters()).keys()
    for name, gradient in gradients.items():
        largest = float(expected_gradients[name].abs().max())
        assert largest > 0, name
        assert torch.allclose(gradient, expected_gradients[name], rtol=1e-3, atol=1e-4 * largest), name
