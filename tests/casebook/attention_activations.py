"""A deep transformer over long sequences: what all its layers keep for backward adds up."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

EXPECTED = "oversized_peak"
BUDGET = "170 MiB"
WIDTH, NUM_HEADS = 96, 4


class Block(nn.Module):
    """[batch, time, WIDTH] -> the same."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.widen = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, time, _ = hidden.shape
        parts = self.attention(self.norm(hidden)).view(batch, time, 3, NUM_HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = (parts[0] @ parts[1].transpose(-1, -2) / (WIDTH / NUM_HEADS) ** 0.5).softmax(-1)
        hidden = hidden + (scores @ parts[2]).transpose(1, 2).reshape(batch, time, WIDTH)
        return hidden + self.narrow(functional.gelu(self.widen(self.norm(hidden))))


class Model(nn.Module):
    def __init__(self, is_healthy: bool) -> None:
        super().__init__()
        self.is_healthy = is_healthy
        self.embedding = nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(8))
        self.head = nn.Linear(WIDTH, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            if self.is_healthy:
                hidden = checkpoint(block, hidden, use_reentrant=False)
                continue
            hidden = block(hidden)  # fault
        return self.head(hidden)


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model(is_healthy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(36):
        tokens = torch.randint(64, (4, 257))
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
