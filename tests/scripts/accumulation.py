"""Gradients of four batches are accumulated into one update; the last update of an epoch makes do with two."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 4
BATCH_SIZE = 8


def main() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(14 * BATCH_SIZE, 16)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=BATCH_SIZE, num_workers=1)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for epoch in range(2):
        optimizer.zero_grad(set_to_none=True)
        for index, (x, y) in enumerate(loader):
            loss = F.mse_loss(model(x), y)
            (loss / ACCUMULATE).backward()
            print(f"epoch {epoch} batch {index} loss {loss.item()}")
            if (index + 1) % ACCUMULATE == 0 or index + 1 == len(loader):
                nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
