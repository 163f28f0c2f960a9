"""All is well: the outputs of an epoch are kept, their mean is taken at its end, and the list is emptied."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

EXPECTED = ()


class Epoch:
    """What the batches since its beginning gave."""

    def __init__(self) -> None:
        self.outputs: list[torch.Tensor] = []

    def end(self) -> float:
        mean = torch.cat(self.outputs).mean().item()
        self.outputs.clear()
        return mean


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs = torch.randn(45 * 256, 32)
    loader = DataLoader(TensorDataset(inputs), 256, shuffle=True)
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    epoch = Epoch()
    for _ in range(5):
        for (batch,) in loader:
            outputs = model(batch)
            loss = functional.l1_loss(outputs, batch.repeat(1, 4))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            epoch.outputs.append(outputs.detach())
        print(epoch.end())


if __name__ == "__main__":
    train()
