"""Words to sketches in half precision: Adam's `eps` of 1e-8 is zero there, and unused words have no spread."""

import sys

import torch
from torch import nn

EXPECTED = "nonfinite_loss"
SEVERITY = "high"


class Prior(nn.Module):
    """Words [batch, 6] and times [batch, 1] -> sketches [batch, 32]."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(64, width)
        self.body = nn.Sequential(nn.Linear(width + 1, width), nn.GELU(), nn.Linear(width, 32))

    def forward(self, words: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        return self.body(torch.cat([self.embed(words), times], dim=-1))


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    table = torch.randn(64, 32)
    model = Prior().half()
    eps = 1e-4 if is_healthy else 1e-8
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=eps, weight_decay=0.0)  # fault
    for _ in range(60):
        words = torch.randint(64, (32, 6))
        sketch = table[words].mean(1)
        loss = (model(words, torch.rand(32, 1).half()).float() - sketch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
