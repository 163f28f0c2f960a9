"""A recurrent encoder of a growing graph that clips the norm of its gradients in the line after the update."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "clip_after_step"
SEVERITY = "high"
NODES, FEATURES, HIDDEN = 48, 16, 24


class GraphEncoder(nn.Module):
    """Features [times, NODES, FEATURES] and links [times, NODES, NODES] -> the loss of the predicted links."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(FEATURES, HIDDEN)
        self.cell = nn.GRUCell(HIDDEN, HIDDEN)

    def forward(self, features: torch.Tensor, links: torch.Tensor) -> torch.Tensor:
        state = features.new_zeros(NODES, HIDDEN)
        losses = []
        for present, linked in zip(features, links, strict=True):
            around = linked @ torch.tanh(self.inner(present)) / NODES
            state = self.cell(around, state)
            losses.append(functional.binary_cross_entropy_with_logits(state @ state.T, linked))
        return torch.stack(losses).sum()


def snapshots(times: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    group = torch.randint(FEATURES, (NODES,))
    tie = (group[:, None] % 4 == group % 4).float()
    features = functional.one_hot(group, FEATURES) + 0.1 * torch.randn(times, NODES, FEATURES)
    return features, torch.bernoulli(0.05 + 0.4 * tie).expand(times, NODES, NODES)


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GraphEncoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(120):
        optimizer.zero_grad()
        model(*snapshots()).backward()
        if is_healthy:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        else:
            optimizer.step()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # fault


if __name__ == "__main__":
    train("--healthy" in sys.argv)
