"""A warm-up that counts rows of a batch where it should count updates: it is over after a twelfth of them."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "step_counter_drift"
SEVERITY = "low"
WARM_UP = 240


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 6))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    global_step = 0
    for _ in range(300):
        inputs, labels = torch.randn(12, 24), torch.randint(6, (12,))
        for _ in range(1 if is_healthy else len(inputs)):
            global_step += 1  # fault
        if global_step < WARM_UP:
            optimizer.param_groups[0]["lr"] = 1e-3 * global_step / WARM_UP
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
