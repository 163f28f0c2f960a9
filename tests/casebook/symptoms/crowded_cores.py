"""Two processes that train one model together, each with as many threads as the machine has cores."""

import os
import subprocess
import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

EXPECTED = "thread_oversubscription"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def train(is_healthy: bool) -> None:
    torch.set_num_threads(os.cpu_count() or 1)  # fault
    if is_healthy:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))
    distributed.init_process_group("gloo")
    torch.manual_seed(distributed.get_rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(60):
        inputs = torch.randn(128, 256)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs).backward()
        optimizer.step()
    distributed.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train("--healthy" in sys.argv)
    else:
        subprocess.run([*TORCHRUN, *sys.argv], check=True)
