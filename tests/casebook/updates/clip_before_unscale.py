"""A sequence classifier that learns under a gradient scaler and clips gradients that are still scaled."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "clip_before_unscale"
SEVERITY = "high"
CLASSES, TIMES = 6, 12


class Reader(nn.Module):
    """Tokens [batch, TIMES] -> logits [batch, CLASSES]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 24)
        self.recurrent = nn.GRU(24, 32, batch_first=True)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.recurrent(self.embedding(tokens))
        return self.head(states[:, -1])


def batch(size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(32, (size, TIMES))
    return tokens, tokens[:, -1] % CLASSES


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Reader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    for _ in range(120):
        optimizer.zero_grad()
        tokens, labels = batch()
        scaler.scale(functional.cross_entropy(model(tokens), labels)).backward()
        if is_healthy:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # fault
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
