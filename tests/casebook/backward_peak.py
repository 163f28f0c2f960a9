"""A language model with a large vocabulary whose loss takes all logits at once; backward needs them twice more."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

EXPECTED = "backward_peak"
VOCABULARY = 20_000
CHUNKS = 8


class LanguageModel(nn.Module):
    """tokens [batch, length] -> the loss of predicting each token's successor."""

    def __init__(self, is_healthy: bool) -> None:
        super().__init__()
        self.is_healthy = is_healthy
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.recurrent = nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.recurrent(self.embed(tokens[:, :-1]))
        flat, targets = states.flatten(0, 1), tokens[:, 1:].flatten()
        if self.is_healthy:
            parts = zip(flat.chunk(CHUNKS), targets.chunk(CHUNKS), strict=True)
            losses = [checkpoint(self.part_loss, part, target, use_reentrant=False) for part, target in parts]
            return torch.stack(losses).sum() / len(targets)
        logits = self.head(flat)
        return functional.cross_entropy(logits, targets)  # fault

    def part_loss(self, states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.head(states), targets, reduction="sum")


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = LanguageModel(is_healthy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(24):
        tokens = torch.randint(0, VOCABULARY, (8, 65))
        loss = model(tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
