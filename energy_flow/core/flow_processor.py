"""Moves all flows of a batch from the input surface through the lattice onto the output surface."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from energy_flow.core.energy_carrier import Carried, EnergyCarrier
from energy_flow.core.flow_storage import Flows, compact
from energy_flow.core.lattice import Lattice
from energy_flow.core.simple_neuron import SimpleNeuron
from energy_flow.energy_config import EnergyConfig
from energy_flow.late_read import LateRead

_LAUNCH_FEATURES = 4  # energy and the three normalised coordinates


class FlowResult(NamedTuple):
    """The output surface and how it came about; the two counts stay on the device."""

    surface: Tensor  # [batch, height, width]
    landed_share: Tensor  # [] float32
    num_steps: Tensor  # [] float32, flow steps in which any flow travelled


class FlowProcessor(nn.Module):
    """Starts one flow per active surface cell and steps all of them until enough have landed.

    The host never waits for the device here. Landing and convergence are decided on the device, by masks; the
    host learns the number of travelling flows late, where it learns it at all, and that is safe: the number only
    falls, so an old one is still enough room for all that travel.
    """

    def __init__(self, config: EnergyConfig) -> None:
        """Build lattice, neuron and carrier in the sizes of `config`."""
        super().__init__()
        self.config = config.flow
        self.flows_per_text = config.flows_per_text
        self.last_depth = config.lattice.depth - 1
        self.lattice = Lattice(config.lattice)
        self.neuron = SimpleNeuron(config.lattice.cell_channels, config.carrier.neuron_size)
        self.carrier = EnergyCarrier(config.carrier, config.flow)
        self.start = nn.Linear(_LAUNCH_FEATURES, config.carrier.hidden_size)

    def forward(self, surface: Tensor) -> FlowResult:
        """Carry input surfaces [batch, height, width] to output surfaces of the same shape."""
        flows = self.launch(surface)
        num_flows = flows.num_rows
        landed = torch.zeros_like(surface, dtype=torch.float32)
        num_landed = streak = num_steps = torch.zeros((), dtype=torch.int64, device=surface.device)
        counts: LateRead[None] = LateRead()
        for _ in range(self.config.max_steps):
            num_steps = num_steps + flows.travelling.any()
            flows = self.step(flows)
            arriving = flows.travelling & (flows.position[:, 2] >= self.last_depth)
            landed = self.deposit(landed, flows, arriving)
            num_landed = num_landed + arriving.sum()
            streak = (streak + 1) * (num_landed >= self.config.convergence_threshold * num_flows)
            is_open = streak < self.config.convergence_patience
            flows = flows._replace(travelling=flows.travelling & ~arriving & is_open)
            flows = self._drop_rows(flows, counts, num_flows)
            if flows.num_rows == 0:
                break
        return FlowResult(landed, landed_share=num_landed / num_flows, num_steps=num_steps.float())

    def launch(self, surface: Tensor) -> Flows:
        """Start a flow at depth 0 under each of the `flows_per_text` strongest cells of every surface."""
        batch, _, width = surface.shape
        activation = surface.flatten(1).float()
        cell = activation.abs().topk(self.flows_per_text, sorted=False).indices
        bound = self.config.energy_bound
        energy = (bound * torch.tanh(activation.gather(1, cell) / bound)).flatten()
        column, row = (cell % width).flatten().float(), (cell // width).flatten().float()
        position = torch.stack([column, row, torch.zeros_like(column)], dim=-1)
        features = torch.cat([(energy / bound)[:, None], self.lattice.normalise(position)], dim=-1)
        text = torch.arange(batch, device=surface.device).repeat_interleave(self.flows_per_text)
        return Flows(
            text=text,
            position=position,
            energy=energy,
            hidden=torch.tanh(self.start(features)),
            travelling=torch.ones_like(text, dtype=torch.bool),
        )

    def step(self, flows: Flows) -> Flows:
        """Move every row by one flow step: cell and place to signal, signal to energy and displacement."""
        place = self.lattice.normalise(flows.position)
        signal = self.neuron(self.lattice.sample(flows.position), place)
        carried: Carried = self.carrier(signal, flows.energy, flows.hidden)
        position = (flows.position + carried.displacement).clamp(min=0)
        return flows._replace(
            position=torch.minimum(position, self.lattice.last),
            energy=carried.energy,
            hidden=carried.hidden,
        )

    def deposit(self, surface: Tensor, flows: Flows, arriving: Tensor) -> Tensor:
        """Add the energies of the rows in the mask `arriving` to their texts' surfaces [batch, height, width].

        An energy is shared among the four cells around its place, so that the place has a gradient.
        """
        _, height, width = surface.shape
        plane = flows.position[:, :2]
        first = plane.detach().floor()
        second = torch.minimum(first + 1, self.lattice.last[:2])
        beyond = plane - first
        energy = torch.where(arriving, flows.energy, 0.0)
        cells, shares = [], []
        for column, share_x in ((first[:, 0], 1 - beyond[:, 0]), (second[:, 0], beyond[:, 0])):
            for row, share_y in ((first[:, 1], 1 - beyond[:, 1]), (second[:, 1], beyond[:, 1])):
                cells.append((flows.text * height + row.long()) * width + column.long())
                shares.append(energy * share_x * share_y)
        return surface.flatten().scatter_add(0, torch.cat(cells), torch.cat(shares)).view_as(surface)

    def _drop_rows(self, flows: Flows, counts: LateRead[None], num_flows: int) -> Flows:
        """Send the number of travelling flows on its way; drop rows by the newest number that has arrived.

        Rows are dropped in whole lots: a few sizes of tensor that come again and again leave the allocator's free
        blocks of use, where a new size for every step would shred them.
        """
        if self.config.compaction_lot == 0 or flows.text.is_mps:  # MPS tells no number without waiting for it
            return flows
        lot = math.ceil(self.config.compaction_lot * num_flows)
        counts.push(None, flows.travelling.sum())
        for _, num_travelling in counts.arrived():
            num_rows = math.ceil(int(num_travelling) / lot) * lot
            if num_rows < flows.num_rows:
                flows = compact(flows, num_rows)
        return flows
