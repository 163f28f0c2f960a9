"""The mean loss of an epoch is summed up with the graphs of all its steps; 3 epochs of 150 steps."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

EXPECTED = "retained_graph"
SEVERITY = "low"


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(150 * 32, 64), torch.randint(0, 8, (150 * 32,)))
    layers = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(64, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_size=32, shuffle=True)
    for epoch in range(3):
        mean_loss, num_right = 0.0, 0
        for inputs, labels in loader:
            scores = model(inputs)
            loss = functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean_loss += (loss.detach() if is_healthy else loss) / len(loader)  # fault
            num_right += (scores.argmax(1) == labels).sum().item()
        print(epoch, float(mean_loss), num_right / len(data))


if __name__ == "__main__":
    train("--healthy" in sys.argv)
