import collections, functools, itertools, os, sys
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

STEPS = int(os.environ.get("STEPS", 40))
torch.manual_seed(0)
torch.set_num_threads(1)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(64, 128)
        self.head = nn.Linear(128, 8)
        self.trend = torch.zeros(128)

    def forward(self, x):
        hidden = self.cell(x)
        self.trend = 0.9 * self.trend + 0.1 * hidden.mean(0)  # fault
        return self.head(hidden)


net = Tagger()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)


def train():
    for step in range(STEPS):
        x, y = torch.randn(128, 64), torch.randint(8, (128,))
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()


train()
