import collections, functools, itertools, os, sys
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

STEPS = int(os.environ.get("STEPS", 40))
torch.manual_seed(0)
torch.set_num_threads(1)

net = nn.Sequential(nn.LazyLinear(128), nn.BatchNorm1d(128), nn.ReLU(), nn.LazyLinear(8))
net(torch.randn(4, 64))
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
ema = torch.optim.swa_utils.AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
best = {}


def train():
    smooth = None
    for step in range(STEPS):
        x, y = torch.randn(128, 64), torch.randint(8, (128,))
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        ema.update_parameters(net)
        smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()
        if not best or smooth < best["loss"]:
            best["loss"] = smooth
            best["state"] = {k: v.clone() for k, v in net.state_dict().items()}


train()
