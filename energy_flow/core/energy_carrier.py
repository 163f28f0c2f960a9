"""The carrier: the recurrent cell that gives each flow its new energy and its displacement."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from energy_flow.energy_config import CarrierConfig, FlowConfig

_MOVE_PARTS = (1, 1, 2, 1)  # energy gate, energy, shift along x and y, advance along z
_SHIFT = slice(2, 4)  # its rows
_PACE_SPREAD = 2.0  # scale of a new layer's weights for gate, energy and advance: flows differ in pace from the start
_SHIFT_SPREAD = 0.05  # of the shift's rows, over that
_START_GATE = -3.0  # its bias: a twentieth of the energy is renewed in a flow step
"""New flows go nearly straight and keep what they carry. With shifts of the others' spread they scatter it, and
`cpu_demo` learned the mean target alone: 1.7 % of held-out pairs found, against 5 to 8 %."""


class Carried(NamedTuple):
    """What one flow step makes of each flow."""

    hidden: Tensor  # [flows, hidden_size]
    energy: Tensor  # [flows], within plus and minus energy_bound
    displacement: Tensor  # [flows, 3], cells along x, y and z; z is at least min_advance


class EnergyCarrier(nn.Module):
    """A layer norm, a GRU cell and one layer that reads energy and displacement from the hidden state."""

    def __init__(self, carrier: CarrierConfig, flow: FlowConfig) -> None:
        """Start from orthogonal recurrent weights, which neither grow nor shrink a state over many steps."""
        super().__init__()
        self.flow = flow
        self.norm = nn.LayerNorm(carrier.neuron_size + 1)
        self.cell = nn.GRUCell(carrier.neuron_size + 1, carrier.hidden_size)
        self.move = nn.Linear(carrier.hidden_size, sum(_MOVE_PARTS))
        for gate in self.cell.weight_hh.chunk(3):
            nn.init.orthogonal_(gate)
        with torch.no_grad():
            self.move.weight.mul_(_PACE_SPREAD)
            self.move.bias[:1].fill_(_START_GATE)
            for start in (self.move.weight[_SHIFT], self.move.bias[_SHIFT]):
                start.mul_(_SHIFT_SPREAD)

    def forward(self, signal: Tensor, energy: Tensor, hidden: Tensor) -> Carried:
        """One recurrent step from signals [flows, neuron_size], energies [flows] and hidden states.

        The new energy is a mix of the old one and a bounded proposal, so that it can never leave its bounds.
        """
        scaled_energy = (energy / self.flow.energy_bound)[:, None].to(signal.dtype)
        hidden = self.cell(self.norm(torch.cat([signal, scaled_energy], dim=-1)), hidden)
        gate, proposal, shift, advance = self.move(hidden).float().split(_MOVE_PARTS, dim=-1)
        proposed_energy = self.flow.energy_bound * torch.tanh(proposal.squeeze(-1))
        energy = torch.lerp(energy, proposed_energy, torch.sigmoid(gate.squeeze(-1)))
        span = self.flow.max_advance - self.flow.min_advance
        displacement = torch.cat(
            [self.flow.max_shift * torch.tanh(shift), self.flow.min_advance + span * torch.sigmoid(advance)], dim=-1
        )
        return Carried(hidden=hidden, energy=energy, displacement=displacement)
