"""DistributedDataParallel under torchrun, gradients exchanged only by the last micro-batch of an update."""

import gc
import itertools
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ACCUMULATE = 2


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(160, 16)
    dataset = TensorDataset(inputs, inputs.sum(1, keepdim=True))
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
    gathered: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, lines)
    if dist.get_rank() == 0:
        print(*itertools.chain(*gathered), sep="\n")
    time.sleep(0.2)  # gloo's threads let go of the last tensors, for which they need Python's lock, which the end holds
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # the model's cycles hold the group, which must not outlive Python: gloo aborts then, now and then
