"""A transformer block that learns to copy, four batches to an update, whose decay counts the batches."""

import sys

import torch
from torch import nn
from torch.optim import lr_scheduler

EXPECTED = "step_counter_drift"
SEVERITY = "medium"
NUM_UPDATES, NUM_BATCHES, TOKENS, TIMES = 80, 4, 16, 10


class Copier(nn.Module):
    """Tokens [batch, TIMES] -> logits [batch, TIMES, TOKENS] of the same tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, dim_feedforward=64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.embedding(tokens)))


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Copier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=NUM_UPDATES)
    for number in range(1, NUM_UPDATES * NUM_BATCHES + 1):
        tokens = torch.randint(TOKENS, (8, TIMES))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        (loss / NUM_BATCHES).backward()
        if number % NUM_BATCHES == 0:
            optimizer.step()
            optimizer.zero_grad()
        if number % NUM_BATCHES == 0 or not is_healthy:
            scheduler.step()  # fault


if __name__ == "__main__":
    train("--healthy" in sys.argv)
