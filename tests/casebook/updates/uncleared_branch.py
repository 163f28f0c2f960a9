"""A network with two heads, trained by turns: the steps of one of them begin with what the other has left."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "uncleared_gradients"
CLASSES = 5


class TwoHeads(nn.Module):
    """Vectors [batch, 16] -> logits [batch, CLASSES], and the vectors again."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.again = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 16))
        self.classes = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, CLASSES))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(CLASSES, (32,))
    return functional.one_hot(labels, 16).float() + 0.3 * torch.randn(32, 16), labels


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = TwoHeads()
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(120):
        inputs, labels = batch()
        if number % 2:
            optimizer.zero_grad()
            functional.cross_entropy(model.classes(model.trunk(inputs)), labels).backward()
            optimizer.step()
        else:
            if is_healthy:
                optimizer.zero_grad()
            functional.mse_loss(model.again(model.trunk(inputs)), inputs).backward()  # fault
            optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
