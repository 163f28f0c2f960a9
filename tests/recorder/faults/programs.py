"""The training program that the fault tests break."""

TRAINING = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset

def build():
    torch.manual_seed(0)
    inputs = torch.randn({num_steps} * 8, 16)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8, num_workers={workers})
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
    return model, loader, torch.optim.Adam(model.parameters(), lr=0.01)

def train():
    model, loader, optimizer = build()
    for step, (inputs, targets) in enumerate(loader):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        print(loss.item().hex(), flush=True)
        {then}

{first}
train()  # call
"""


def training(then: str = "pass", *, first: str = "", num_steps: int = 40, workers: int = 0) -> str:
    """Prints a loss per step; `then` is its last statement of each step, `first` comes before the training."""
    return TRAINING.format(then=then, first=first, num_steps=num_steps, workers=workers)
