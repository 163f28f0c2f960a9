"""A recommender that keeps its last checkpoints on the device: the copies lie where activations were, and pin that."""

import sys
from collections import deque

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "fragmented_reserve"
DEVICE = "cuda"
OPTIONS = ("--memory-steps", "0:48", "--trace-steps", "none", "--triggers", "none")
"""The history of all steps: what fragments it comes with the saves."""

BATCH, WIDTH, NUM_LAYERS = 16_384, 1024, 4
"""An activation takes 64 MiB."""
NUM_TABLES, NUM_ROWS, NUM_COLUMNS = 4, 163_840, 64
"""A table takes 40 MiB: in a freed activation's segment it leaves 24 MiB, which serve no activation."""
NUM_KEPT, SAVE_EVERY = 4, 3


class Recommender(nn.Module):
    """Ids of [batch, NUM_TABLES] -> a rating for each of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(NUM_ROWS, NUM_COLUMNS) for _ in range(NUM_TABLES))
        self.widen = nn.Linear(NUM_TABLES * NUM_COLUMNS, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.widen(torch.cat([table(ids[:, place]) for place, table in enumerate(self.tables)], dim=1))
        for layer in self.layers:
            hidden = layer(functional.gelu(hidden))
        return self.head(hidden).squeeze(1)


class Checkpoints:
    """The latest states, to go back to should the loss explode; the healthy one made room for them before training."""

    def __init__(self, model: nn.Module, is_healthy: bool) -> None:
        self.model = model
        self.kept: deque[dict[str, torch.Tensor]] = deque(maxlen=NUM_KEPT)
        if is_healthy:
            self.kept.extend(
                {name: value.clone() for name, value in model.state_dict().items()} for _ in range(NUM_KEPT)
            )
        self.is_healthy = is_healthy

    def save(self) -> None:
        if self.is_healthy:
            self.kept.rotate()
            for name, value in self.model.state_dict().items():
                self.kept[0][name].copy_(value)
            return
        self.kept.append({name: value.clone() for name, value in self.model.state_dict().items()})  # fault


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = Recommender()
    checkpoints = Checkpoints(model, is_healthy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(48):
        ids = torch.randint(NUM_ROWS, (BATCH, NUM_TABLES), device=DEVICE)
        ratings = torch.rand(BATCH, device=DEVICE)
        loss = functional.mse_loss(model(ids), ratings)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % SAVE_EVERY == SAVE_EVERY - 1:
            checkpoints.save()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
