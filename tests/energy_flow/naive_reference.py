"""What `EnergyFlowModel` must compute, as a loop: one flow at a time through the lattice, one text at a time around it.

Every flow step calls neuron and carrier for one flow, and every text has an encoder and a decoder call of its own, as
the trainer did before its flows moved together. Weights are the model's own and gradients reach them; the
interpolation is written out here, by other means than the lattice's. `benchmarks/trainer.py` times it too.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from energy_flow.core.flow_processor import FlowProcessor, FlowResult
from energy_flow.data.batch import Batch
from energy_flow.energy_config import EnergyConfig, LatticeConfig
from energy_flow.model import EnergyFlowModel, Losses
from energy_flow.text_bridge.tokens import PADDING


class NaiveFlow(NamedTuple):
    """One flow of one text."""

    text: int
    position: Tensor  # [3]
    energy: Tensor  # []
    hidden: Tensor  # [hidden_size]


def naive_losses(model: EnergyFlowModel, config: EnergyConfig, batch: Batch) -> Losses:
    """The losses of a batch; texts and flows share nothing but the test whether enough flows have landed."""
    surfaces = [model.mapper.to_surface(embedding[None])[0] for embedding in batch.input_embedding]
    flow = naive_flows(model.flows, config, surfaces)
    parts = [_text_losses(model, batch, text, surfaces[text], flow.surface[text]) for text in range(len(surfaces))]
    embedding, surface, text_sum = (torch.stack(part).mean() for part in zip(*parts, strict=True))
    # Cross entropy is a mean over all tokens of the batch, and texts differ in their number.
    text = text_sum * len(surfaces) / (batch.target_tokens[:, 1:] != PADDING).sum()
    weights = config.training
    total = embedding + weights.surface_loss_weight * surface + weights.text_loss_weight * text
    return Losses(total, embedding, surface, text, flow.landed_share, flow.num_steps)


def naive_flows(processor: FlowProcessor, config: EnergyConfig, surfaces: list[Tensor]) -> FlowResult:
    """The output surfaces [batch, height, width] of input surfaces [height, width]."""
    settings = config.flow
    landed = [torch.zeros_like(surface) for surface in surfaces]
    flows = [
        started(processor, config, text, surface, int(cell))
        for text, surface in enumerate(surfaces)
        for cell in surface.flatten().abs().topk(config.flows_per_text).indices
    ]
    num_flows, num_landed, streak, steps = len(flows), 0, 0, 0
    while flows and steps < settings.max_steps and streak < settings.convergence_patience:
        steps += 1
        flows = [moved(processor, config, flow) for flow in flows]
        travelling = []
        for flow in flows:
            if flow.position[2] < config.lattice.depth - 1:
                travelling.append(flow)
                continue
            num_landed += 1
            landed[flow.text] = _spread(landed[flow.text], flow)
        flows = travelling
        streak = streak + 1 if num_landed >= settings.convergence_threshold * num_flows else 0
    return FlowResult(torch.stack(landed), torch.tensor(num_landed / num_flows), torch.tensor(float(steps)))


def started(processor: FlowProcessor, config: EnergyConfig, text: int, surface: Tensor, cell: int) -> NaiveFlow:
    """A flow at depth 0 under a cell of its text's surface [height, width]."""
    bound = config.flow.energy_bound
    row, column = divmod(cell, config.lattice.width)
    energy = bound * torch.tanh(surface[row, column] / bound)
    position = torch.tensor([float(column), float(row), 0.0])
    features = torch.cat([(energy / bound)[None], _place(config.lattice, position)])
    return NaiveFlow(text, position, energy, torch.tanh(processor.start(features)))


def moved(processor: FlowProcessor, config: EnergyConfig, flow: NaiveFlow) -> NaiveFlow:
    """The flow after one flow step: one neuron call, one carrier call."""
    cell_state = _interpolated(processor.lattice.cells, flow.position)
    signal = processor.neuron(cell_state[None], _place(config.lattice, flow.position)[None])
    carried = processor.carrier(signal, flow.energy[None], flow.hidden[None])
    position = torch.minimum((flow.position + carried.displacement[0]).clamp(min=0), _last(config.lattice))
    return NaiveFlow(flow.text, position, carried.energy[0], carried.hidden[0])


def _text_losses(
    model: EnergyFlowModel, batch: Batch, text: int, surface: Tensor, landed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The embedding and surface losses of one text, and the sum of its tokens' losses."""
    predicted = model.mapper.from_surface(landed[None])[0]
    embedding = 1 - functional.cosine_similarity(predicted, batch.target_embedding[text], dim=0)
    encoded = functional.mse_loss(model.encoder(batch.input_tokens[text : text + 1])[0], surface.detach())
    tokens = batch.target_tokens[text]
    logits = model.decoder(landed[None], tokens[None, :-1])[0]
    return embedding, encoded, functional.cross_entropy(logits, tokens[1:], ignore_index=PADDING, reduction="sum")


def _interpolated(cells: Tensor, position: Tensor) -> Tensor:
    """The cell state [cell_channels] at a position: the eight cells around it, each by its share."""
    (x, y, z), shares = _corners(position, torch.tensor(cells.shape[:0:-1]))
    return cells[:, z, y, x] @ shares


def _spread(surface: Tensor, flow: NaiveFlow) -> Tensor:
    """The surface [height, width] with the flow's energy on the four cells around its place."""
    (x, y), shares = _corners(flow.position[:2], torch.tensor(surface.shape[::-1]))
    return surface.index_put((y, x), flow.energy * shares, accumulate=True)


def _corners(position: Tensor, sizes: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    """The grid points around a position [n], one index [2^n] per axis, and each point's share, which sum to 1."""
    first = position.detach().floor()
    beyond = position - first
    is_beyond = _sides(len(position))
    indices = torch.minimum(first.long() + is_beyond, sizes - 1)
    return indices.unbind(dim=1), torch.where(is_beyond, beyond, 1 - beyond).prod(dim=1)


@cache
def _sides(num_axes: int) -> Tensor:
    """Every choice [2^n, n] between the two sides of each axis."""
    return torch.cartesian_prod(*[torch.tensor([False, True])] * num_axes)


def _place(lattice: LatticeConfig, position: Tensor) -> Tensor:
    return 2 * position / _last(lattice) - 1


def _last(lattice: LatticeConfig) -> Tensor:
    return torch.tensor([lattice.width - 1.0, lattice.height - 1.0, lattice.depth - 1.0])
