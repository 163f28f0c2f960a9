"""Pictures that get larger every 40 steps, in progressive resizing: a loader's dicts, which the model takes by name."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

EXPECTED = ()
SIZES = (8, 12, 16, 20, 24)

Picture = dict[str, torch.Tensor]


class Classifier(nn.Module):
    """Pictures [batch, 3, size, size] -> scores [batch, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(32, 4)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(pictures).mean((2, 3)))


class Pictures(Dataset[Picture]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return 16 * 40

    def __getitem__(self, index: int) -> Picture:
        kind = torch.tensor(index % 4)
        return {"pictures": torch.randn(3, self.size, self.size) + kind, "kind": kind}


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for size in SIZES:
        for batch in DataLoader(Pictures(size), batch_size=16):
            loss = functional.cross_entropy(model(pictures=batch["pictures"]), batch["kind"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    train()
