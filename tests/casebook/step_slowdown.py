"""A classifier that weighs each batch by how often its samples were seen, counting anew all that was ever seen."""

import collections
import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "step_slowdown"


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    samples, classes = torch.randn(163_840, 128), torch.randint(0, 10, (163_840,))
    counts: collections.Counter[int] = collections.Counter()
    for start in range(0, 163_840, 512):
        inputs, labels, batch = samples[start:][:512], classes[start:][:512], range(start, start + 512)
        if is_healthy:
            counts.update(batch)
        else:
            counts = collections.Counter(range(start + 512))  # fault
        weights = torch.tensor([1 / counts[number] for number in batch])
        loss = (functional.cross_entropy(model(inputs), labels, reduction="none") * weights).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
