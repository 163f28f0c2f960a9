"""A trainer's meter collects the terms of the loss with their graphs until an epoch of 120 steps ends; 4 epochs."""

import sys

import torch
from torch import nn

EXPECTED = "retained_graph"
SEVERITY = "low"


class Meter:
    def __init__(self) -> None:
        self.terms: dict[str, list[torch.Tensor]] = {}

    def add(self, **terms: torch.Tensor) -> None:
        for name, term in terms.items():
            self.terms.setdefault(name, []).append(term)  # fault

    def means(self) -> dict[str, float]:
        means = {name: torch.stack(terms).mean().item() for name, terms in self.terms.items()}
        self.terms = {}
        return means


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    encoder = nn.GRU(16, 48, batch_first=True)
    decoder = nn.Linear(48, 16)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=1e-2)
    meter = Meter()
    for epoch in range(4):
        for _ in range(120):
            series = torch.randn(8, 40, 16).cumsum(1)
            states, _ = encoder(series)
            error, size = (decoder(states) - series).square().mean(), states.abs().mean()
            optimizer.zero_grad()
            (error + 0.01 * size).backward()
            optimizer.step()
            terms = {"error": error, "size": size}
            meter.add(**{name: term.detach() for name, term in terms.items()} if is_healthy else terms)
        print(epoch, meter.means())


if __name__ == "__main__":
    train("--healthy" in sys.argv)
