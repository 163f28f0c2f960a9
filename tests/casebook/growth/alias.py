"""A classifier that keeps the features of every batch for a map of them, in a list with a short name in the loop."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "growing_tensors"


class Features:
    def __init__(self) -> None:
        self.by_part: dict[str, list[torch.Tensor]] = {"train": [], "test": []}


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    body, head = nn.Sequential(nn.Linear(64, 512), nn.ReLU()), nn.Linear(512, 10)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.05)
    features = Features()
    kept = features.by_part["train"]
    for _ in range(220):
        inputs, labels = torch.randn(128, 64), torch.randint(10, (128,))
        hidden = body(inputs)
        loss = functional.cross_entropy(head(hidden), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if is_healthy:
            kept.clear()
        kept.append(hidden.detach())  # fault


if __name__ == "__main__":
    train("--healthy" in sys.argv)
