"""The lattice: learned cell states, read at any position between the cells."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from energy_flow.energy_config import LatticeConfig

_CELL_SPREAD = 0.5  # standard deviation of a new cell state: of the order of the other neuron inputs


class Lattice(nn.Module):
    """Cells of `cell_channels` learned numbers on a grid of depth x height x width."""

    first: Tensor  # [3], the first cell along x, y and z: all zero
    last: Tensor  # [3], the last cell along x, y and z
    scale: Tensor  # [3], normalised length of one cell along x, y and z

    def __init__(self, config: LatticeConfig) -> None:
        """Give every cell a random state."""
        super().__init__()
        shape = (config.cell_channels, config.depth, config.height, config.width)
        self.cells = nn.Parameter(torch.randn(shape) * _CELL_SPREAD)
        last = torch.tensor([config.width - 1, config.height - 1, config.depth - 1], dtype=torch.float32)
        self.register_buffer("first", torch.zeros(3), persistent=False)
        self.register_buffer("last", last, persistent=False)
        self.register_buffer("scale", 2 / last.clamp(min=1), persistent=False)

    def normalise(self, position: Tensor) -> Tensor:
        """Places [flows, 3] from -1 (first cell) to 1 (last cell) of positions [flows, 3] in cells (x, y, z)."""
        return position * self.scale - 1

    def clamp(self, position: Tensor) -> Tensor:
        """Positions [flows, 3] in cells, each brought to the nearest one within the lattice."""
        return torch.clamp(position, min=self.first, max=self.last)

    def sample(self, place: Tensor) -> Tensor:
        """Cell states [flows, cell_channels] at places [flows, 3] in -1..1, trilinear between cells.

        Always in float32: bfloat16 cannot tell neighbouring cells of a large lattice apart.
        """
        states = functional.grid_sample(
            self.cells[None], place.view(1, -1, 1, 1, 3), mode="bilinear", padding_mode="border", align_corners=True
        )
        return states.view(self.cells.shape[0], -1).T
