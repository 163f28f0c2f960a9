"""A validation pass every four updates, amid the epoch, and one on the whole training set after it."""

import logging

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EVALUATE_EVERY = 4

logging.basicConfig(format="%(created)f %(message)s", level=logging.INFO)

Loader = DataLoader[tuple[torch.Tensor, ...]]


def make_loader(num_batches: int) -> Loader:
    x = torch.randn(num_batches * 8, 16)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)


@torch.inference_mode()
def evaluate(model: nn.Module, loader: Loader) -> float:
    model.eval()
    total = 0.0
    for x, y in loader:
        logging.info("evaluating")
        total += F.mse_loss(model(x), y).item()
    model.train()
    return total / len(loader)


def main() -> None:
    torch.manual_seed(0)
    train_loader, val_loader = make_loader(10), make_loader(3)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    updates = 0
    print(f"untrained {evaluate(model, val_loader)}")
    for epoch in range(2):
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            updates += 1
            print(f"update {updates} loss {loss.item()}")
            if updates % EVALUATE_EVERY == 0:
                print(f"validation {evaluate(model, val_loader)}")
        print(f"epoch {epoch} training {evaluate(model, train_loader)}")


if __name__ == "__main__":
    main()
