"""huggingface/transformers#45412: the keys of an `lru_cache` on a method hold `self`, and all that it holds."""

import functools
import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "growing_tensors"


class Batch:
    """Pictures [count, 3, 24, 24] with anchors of one size; made anew for every step."""

    def __init__(self) -> None:
        self.pictures = torch.randn(32, 3, 24, 24)

    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033 - what this program is about
    def shared_anchors(self, size: int) -> torch.Tensor:  # fault
        return torch.linspace(-1, 1, size)

    @functools.cached_property
    def own_anchors(self) -> torch.Tensor:
        return torch.linspace(-1, 1, 16)


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 11 * 11, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(160):
        batch = Batch()
        anchors = batch.own_anchors if is_healthy else batch.shared_anchors(16)
        loss = functional.l1_loss(model(batch.pictures), anchors.expand(32, 16))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
