"""A reporter's dict of sums, after pfnet/pytorch-pfn-extras#49: each report binds an entry to a sum with its graph."""

import sys
from collections import Counter

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "retained_graph"
SEVERITY = "high"
STEPS = 60


class Reporter:
    """Sums and numbers of what is reported, by name."""

    def __init__(self, is_healthy: bool) -> None:
        self.is_healthy = is_healthy
        self.totals: dict[str, torch.Tensor | float] = {}
        self.counts: Counter[str] = Counter()

    def report(self, **values: torch.Tensor) -> None:
        for name, value in values.items():
            self.counts[name] += 1
            kept = value.detach() if self.is_healthy else value.clone()
            self.totals[name] = self.totals.get(name, 0.0) + kept  # fault

    def means(self) -> dict[str, float]:
        return {name: float(total) / self.counts[name] for name, total in self.totals.items()}


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 96), nn.ELU(), nn.Linear(96, 256))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    reporter = Reporter(is_healthy)
    for step in range(STEPS):
        clean = torch.rand(96, 256)
        restored = model(clean + 0.2 * torch.randn_like(clean))
        loss = functional.huber_loss(restored, clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        reporter.report(loss=loss, error=(restored - clean).abs().mean())
        if step % 20 == 19:
            print(reporter.means())


if __name__ == "__main__":
    train("--healthy" in sys.argv)
