"""A classifier of feature vectors that is evaluated after each epoch, and stays in evaluation mode from there on."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "training_in_eval_mode"


def evaluate(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    model.eval()  # fault
    with torch.no_grad():
        return float((model(batch[0]).argmax(1) == batch[1]).float().mean())


def batches(num: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    labels = torch.randint(8, (num, 64))
    return [(functional.one_hot(one, 8).float().repeat(1, 8) + torch.randn(64, 64), one) for one in labels]


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 256), nn.ReLU(),
        nn.Dropout(0.3), nn.Linear(256, 8),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    training, held_out = batches(40), batches(1)[0]
    for _ in range(6):
        if is_healthy:
            model.train()
        for inputs, labels in training:
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        print(f"accuracy {evaluate(model, held_out):.3f}")


if __name__ == "__main__":
    train("--healthy" in sys.argv)
