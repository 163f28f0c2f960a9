"""MoonshotAI/Kimi-Audio#117: an unbounded `lru_cache` on `__getitem__` keeps every sample that was ever read."""

import functools
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

EXPECTED = "growing_tensors"
BATCH, NUM_BATCHES = 16, 160


class Clips(Dataset):
    """Made-up spectrograms [40, 64], each from its own seed."""

    def __len__(self) -> int:
        return BATCH * NUM_BATCHES

    def make(self, number: int) -> torch.Tensor:  # fault
        return torch.randn(40, 64, generator=torch.Generator().manual_seed(number))


class UnboundedClips(Clips):
    __getitem__ = functools.lru_cache(maxsize=None)(Clips.make)


class BoundedClips(Clips):
    __getitem__ = functools.lru_cache(maxsize=32)(Clips.make)


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(40 * 64, 128), nn.ReLU(), nn.Linear(128, 40 * 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clips = BoundedClips() if is_healthy else UnboundedClips()
    for batch in DataLoader(clips, BATCH, shuffle=True):
        loss = functional.l1_loss(model(batch), batch.flatten(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
