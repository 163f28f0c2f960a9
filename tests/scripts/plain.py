"""A classifier trained the way the PyTorch tutorials do."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 2
BATCH_SIZE = 16


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(self.flatten(images))


def main() -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(160, 1, 8, 8), torch.randint(0, 10, (160,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=BATCH_SIZE, shuffle=True)
    model = Classifier()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)

    for epoch in range(EPOCHS):
        model.train()
        for batch, (inputs, targets) in enumerate(loader):
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} batch {batch} loss {loss.item()}")
        scheduler.step()


if __name__ == "__main__":
    main()
