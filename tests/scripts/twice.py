"""Cross-validation: the training function is called once per fold, with a new model each time."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

BATCH_SIZE = 8


def train(dataset: Subset[tuple[torch.Tensor, ...]], epochs: int = 2) -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            print(f"loss {loss.item()}")
    return model


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(80, 16)
    dataset = TensorDataset(x, x.sum(1, keepdim=True))
    halves = list(range(40)), list(range(40, 80))
    for fold, kept in enumerate(halves):
        model = train(Subset(dataset, kept))
        held_out = torch.tensor(halves[1 - fold])
        with torch.inference_mode():
            print(f"fold {fold} error {F.mse_loss(model(x[held_out]), dataset.tensors[1][held_out]).item()}")


if __name__ == "__main__":
    main()
