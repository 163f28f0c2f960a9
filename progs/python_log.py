import collections, functools, itertools, os, sys
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

STEPS = int(os.environ.get("STEPS", 40))
torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 128)
        self.second = nn.Linear(128, 128)
        self.last = nn.Linear(128, 8)

    def forward(self, x):
        x = F.relu(self.first(x))
        x = F.relu(self.second(x))
        return self.last(x)


net = Net()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)

log = []


def train():
    for step in range(STEPS):
        x, y = torch.randn(128, 64), torch.randint(8, (128,))
        opt.zero_grad()
        out = net(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        opt.step()
        log.append({"step": step, "out": out.tolist(), "x": x.tolist()})  # fault


train()
