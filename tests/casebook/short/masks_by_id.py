"""A model of sequences that caches its masks by the `id` of the lengths they were made for, for 90 steps."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "growing_tensors"
SEVERITY = "high"
STEPS, LENGTH = 90, 48

masks: dict[int, torch.Tensor] = {}
lengths_seen: list[torch.Tensor] = []


def mask_of(lengths: torch.Tensor, is_healthy: bool) -> torch.Tensor:
    """[batch, LENGTH, LENGTH]; the healthy one keeps the last alone."""
    key = 0 if is_healthy else id(lengths)
    within = torch.arange(LENGTH) < lengths.unsqueeze(1)
    masks[key] = (within.unsqueeze(1) & within.unsqueeze(2)).float()  # fault
    return masks[key]


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    embed, head = nn.Linear(16, 32), nn.Linear(32, 16)
    optimizer = torch.optim.AdamW([*embed.parameters(), *head.parameters()], lr=1e-3)
    lengths = [torch.randint(8, LENGTH, (32,)) for _ in range(STEPS)]
    for step in range(STEPS):
        inputs = torch.randn(32, LENGTH, 16)
        hidden = embed(inputs)
        weights = (hidden @ hidden.mT).tanh() * mask_of(lengths[step], is_healthy)
        loss = functional.mse_loss(head(weights @ hidden), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
