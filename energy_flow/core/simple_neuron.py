"""The neuron: one small network, shared by all cells, that turns a cell's state and place into a signal."""

import torch
from torch import Tensor, nn

_COORDINATES = 3


class SimpleNeuron(nn.Module):
    """Two layers from (cell state, position) to the signal that the carrier receives."""

    def __init__(self, cell_channels: int, neuron_size: int) -> None:
        """Size the layers for `cell_channels` numbers in and `neuron_size` numbers out."""
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(cell_channels + _COORDINATES, neuron_size),
            nn.GELU(),
            nn.Linear(neuron_size, neuron_size),
        )

    def forward(self, cell_state: Tensor, place: Tensor) -> Tensor:
        """Signals [flows, neuron_size] from cell states [flows, cell_channels] and places [flows, 3] in -1..1."""
        signal: Tensor = self.layers(torch.cat([cell_state, place], dim=-1))
        return signal
