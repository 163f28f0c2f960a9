"""A forecaster checked on whole years in the loop that trains it: no loader, no `eval()`, no `no_grad`."""

import contextlib
import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "evaluation_graph"
SEVERITY = "medium"
YEARS, DAYS, WINDOW, BATCH = 2, 4000, 28, 400


def windows(series: torch.Tensor, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs [count, WINDOW] and what follows each [count]."""
    places = starts[:, None] + torch.arange(WINDOW + 1)
    taken = series[places]
    return taken[:, :-1], taken[:, -1]


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    series = torch.sin(torch.arange(DAYS + WINDOW + 1) / 9) + 0.1 * torch.randn(DAYS + WINDOW + 1)
    years = [series + 0.1 * torch.randn_like(series) for _ in range(YEARS)]
    model = nn.Sequential(nn.Linear(WINDOW, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1, 181):
        inputs, targets = windows(series, torch.randint(DAYS, (BATCH,)))
        loss = functional.l1_loss(model(inputs).squeeze(1), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            error = 0.0
            with torch.no_grad() if is_healthy else contextlib.nullcontext():
                for year in years:
                    past, following = windows(year, torch.arange(DAYS))
                    forecast = model(past).squeeze(1)  # fault
                    error += functional.l1_loss(forecast, following).item()
            print(step, round(error / YEARS, 4))


if __name__ == "__main__":
    train("--healthy" in sys.argv)
