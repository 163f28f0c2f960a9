"""Maps sentence embeddings onto the input surface, and the output surface back to embeddings."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from energy_flow.energy_config import EMBEDDING_SIZE, LatticeConfig


class EmbeddingMapper(nn.Module):
    """Two linear maps with a normalised surface between them and the lattice."""

    def __init__(self, config: LatticeConfig) -> None:
        """Size the maps for surfaces of height x width."""
        super().__init__()
        self.height, self.width = config.height, config.width
        self.to_cells = nn.Linear(EMBEDDING_SIZE, config.height * config.width)
        self.from_cells = nn.Linear(config.height * config.width, EMBEDDING_SIZE)

    def to_surface(self, embedding: Tensor) -> Tensor:
        """Surfaces [batch, height, width], each of mean 0 and variance 1, from embeddings [batch, 768]."""
        return normalised(self.to_cells(embedding).unflatten(1, (self.height, self.width)))

    def from_surface(self, surface: Tensor) -> Tensor:
        """Embeddings [batch, 768] of unit length from surfaces [batch, height, width]."""
        return functional.normalize(self.from_cells(normalised(surface).flatten(1)).float(), dim=-1)


def normalised(surface: Tensor) -> Tensor:
    """Surfaces [batch, height, width] brought to mean 0 and variance 1 each; a flat one becomes all zero."""
    return torch.layer_norm(surface.float(), list(surface.shape[1:]))
