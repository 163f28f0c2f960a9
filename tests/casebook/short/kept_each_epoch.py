"""Validation of each epoch adds its outputs to those of all before, in 6 epochs of 15 steps."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

EXPECTED = "growing_tensors"
SEVERITY = "high"
EPOCHS, BATCH_SIZE = 6, 1_024


class Validation:
    """The spread of the model's outputs; the healthy one forgets those of the epoch before."""

    def __init__(self, model: nn.Module, is_healthy: bool) -> None:
        self.model, self.is_healthy = model, is_healthy
        self.by_epoch: dict[int, torch.Tensor] = {}

    @torch.no_grad()
    def spread(self, epoch: int, inputs: torch.Tensor) -> float:
        self.model.eval()
        outputs = self.model(inputs)
        self.by_epoch[0 if self.is_healthy else epoch] = outputs  # fault
        self.model.train()
        return torch.stack([*self.by_epoch.values()]).std().item()


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(15 * BATCH_SIZE, 256))
    model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 256))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    validation = Validation(model, is_healthy)
    for epoch in range(EPOCHS):
        batches = BatchSampler(RandomSampler(data), BATCH_SIZE, drop_last=False)
        for (inputs,) in DataLoader(data, batch_size=None, sampler=batches):
            loss = functional.mse_loss(model(inputs), inputs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(validation.spread(epoch, torch.randn(4_096, 256)))


if __name__ == "__main__":
    train("--healthy" in sys.argv)
