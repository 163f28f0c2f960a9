"""DistributedDataParallel under torchrun, gradients exchanged only by the last micro-batch of an update."""

import gc
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from ranks import leave_group, print_by_rank
from synthetic_data import make_dataset
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

ACCUMULATE = 2


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = make_dataset(160)
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    lines = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for index, (x, y) in enumerate(loader):
            is_last = (index + 1) % ACCUMULATE == 0
            with nullcontext() if is_last else model.no_sync():
                loss = F.mse_loss(model(x), y)
                (loss / ACCUMULATE).backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
            lines.append(f"rank {dist.get_rank()} epoch {epoch} batch {index} loss {loss.item()}")
    print_by_rank(lines)
    leave_group()


if __name__ == "__main__":
    main()
    gc.collect()  # the model's cycles hold the group, which must not outlive Python: gloo aborts then, now and then
