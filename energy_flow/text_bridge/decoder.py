"""Surface to text: a byte-level transformer that reads the output surface while it writes."""

import torch
from torch import Tensor, nn

from energy_flow.core.embedding_mapper import normalised
from energy_flow.energy_config import BridgeConfig, LatticeConfig
from energy_flow.text_bridge.attention import Attention, FeedForward
from energy_flow.text_bridge.tokens import BEGIN, VOCABULARY_SIZE

_START_SPREAD = 0.02  # standard deviation of new place vectors, as in GPT-2


class DecoderBlock(nn.Module):
    """Tokens read the tokens before them, then the surface."""

    def __init__(self, model_size: int, num_heads: int) -> None:
        """Make both attentions and the feed-forward network."""
        super().__init__()
        self.text_norm = nn.LayerNorm(model_size)
        self.text_attention = Attention(model_size, num_heads)
        self.surface_norm = nn.LayerNorm(model_size)
        self.surface_attention = Attention(model_size, num_heads)
        self.feed_forward = FeedForward(model_size)

    def forward(self, sequence: Tensor, memory: Tensor) -> Tensor:
        """One block over sequences [batch, length, model_size] with memory [batch, memory_tokens, model_size]."""
        normed = self.text_norm(sequence)
        sequence = sequence + self.text_attention(normed, normed, is_causal=True)
        sequence = sequence + self.surface_attention(self.surface_norm(sequence), memory)
        out: Tensor = sequence + self.feed_forward(sequence)
        return out


class TextDecoder(nn.Module):
    """Writes text, byte by byte, from a surface."""

    def __init__(self, bridge: BridgeConfig, lattice: LatticeConfig) -> None:
        """Size everything for texts of `max_bytes` bytes and surfaces of height x width."""
        super().__init__()
        self.num_memory_tokens = bridge.num_memory_tokens
        self.tokens = nn.Embedding(VOCABULARY_SIZE, bridge.model_size)
        self.places = nn.Parameter(torch.randn(bridge.max_bytes + 1, bridge.model_size) * _START_SPREAD)
        self.from_cells = nn.Linear(lattice.height * lattice.width, bridge.num_memory_tokens * bridge.model_size)
        self.blocks = nn.ModuleList(DecoderBlock(bridge.model_size, bridge.num_heads) for _ in range(bridge.num_layers))
        self.norm = nn.LayerNorm(bridge.model_size)
        self.to_token = nn.Linear(bridge.model_size, VOCABULARY_SIZE)

    def forward(self, surface: Tensor, tokens: Tensor) -> Tensor:
        """Logits [batch, length, vocabulary] of the token after each of tokens [batch, length]."""
        memory = self.from_cells(normalised(surface).flatten(1)).unflatten(1, (self.num_memory_tokens, -1))
        sequence = self.tokens(tokens) + self.places[: tokens.shape[1]]
        for block in self.blocks:
            sequence = block(sequence, memory)
        logits: Tensor = self.to_token(self.norm(sequence))
        return logits

    @torch.no_grad()
    def write(self, surface: Tensor) -> Tensor:
        """The likeliest tokens [batch, max_bytes + 1] for surfaces [batch, height, width], one after another."""
        tokens = torch.full((surface.shape[0], 1), BEGIN, device=surface.device)
        for _ in range(self.places.shape[0]):
            following = self(surface, tokens[:, -self.places.shape[0] :])[:, -1].argmax(dim=-1, keepdim=True)
            tokens = torch.cat([tokens, following], dim=1)
        return tokens[:, 1:]
