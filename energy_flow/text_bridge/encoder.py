"""Text to surface: a byte-level transformer whose summary is laid out on the input surface."""

import torch
from torch import Tensor, nn

from energy_flow.core.embedding_mapper import normalised
from energy_flow.energy_config import BridgeConfig, LatticeConfig
from energy_flow.text_bridge.attention import Attention, FeedForward
from energy_flow.text_bridge.tokens import PADDING, VOCABULARY_SIZE

_START_SPREAD = 0.02  # standard deviation of new place and memory vectors, as in GPT-2


class EncoderBlock(nn.Module):
    """Tokens read all tokens of their text."""

    def __init__(self, model_size: int, num_heads: int) -> None:
        """Make attention and feed-forward network."""
        super().__init__()
        self.norm = nn.LayerNorm(model_size)
        self.attention = Attention(model_size, num_heads)
        self.feed_forward = FeedForward(model_size)

    def forward(self, sequence: Tensor, visible: Tensor) -> Tensor:
        """One block over sequences [batch, length, model_size]."""
        normed = self.norm(sequence)
        sequence = sequence + self.attention(normed, normed, visible=visible)
        out: Tensor = sequence + self.feed_forward(sequence)
        return out


class TextEncoder(nn.Module):
    """Reads tokens into a few memory vectors and lays these out as a surface."""

    def __init__(self, bridge: BridgeConfig, lattice: LatticeConfig) -> None:
        """Size everything for texts of `max_bytes` bytes and surfaces of height x width."""
        super().__init__()
        self.height, self.width = lattice.height, lattice.width
        self.tokens = nn.Embedding(VOCABULARY_SIZE, bridge.model_size)
        self.places = nn.Parameter(torch.randn(bridge.max_bytes + 2, bridge.model_size) * _START_SPREAD)
        self.blocks = nn.ModuleList(EncoderBlock(bridge.model_size, bridge.num_heads) for _ in range(bridge.num_layers))
        self.memory = nn.Parameter(torch.randn(bridge.num_memory_tokens, bridge.model_size) * _START_SPREAD)
        self.norm = nn.LayerNorm(bridge.model_size)
        self.summary = Attention(bridge.model_size, bridge.num_heads)
        self.to_cells = nn.Linear(bridge.num_memory_tokens * bridge.model_size, lattice.height * lattice.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Surfaces [batch, height, width] of mean 0 and variance 1 from tokens [batch, length]."""
        # The begin mark is never hidden, so no text is without anything to read (which would make NaN).
        visible = (tokens != PADDING)[:, None, None, :]
        sequence = self.tokens(tokens) + self.places[: tokens.shape[1]]
        for block in self.blocks:
            sequence = block(sequence, visible)
        reader = self.memory.expand(tokens.shape[0], -1, -1)
        summary = self.summary(reader, self.norm(sequence), visible=visible)
        return normalised(self.to_cells(summary.flatten(1)).unflatten(1, (self.height, self.width)))
