"""A click model whose `collate_fn` makes each row of counts in Python, number by number, in the training process."""

import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

EXPECTED = "python_bound_line"
SEVERITY = "high"
NUM_FEATURES, NUM_CLICKS, BATCH_SIZE, NUM_STEPS = 128, 600, 32, 90

Session = tuple[Any, int]


def make_sessions(is_healthy: bool) -> list[Session]:
    generator = torch.Generator().manual_seed(2)
    wanted = torch.randint(0, 2, (BATCH_SIZE * NUM_STEPS,), generator=generator)
    clicks = torch.randint(0, NUM_FEATURES // 2, (len(wanted), NUM_CLICKS), generator=generator)
    clicks = 2 * clicks + wanted[:, None]
    return list(zip(clicks if is_healthy else clicks.tolist(), wanted.tolist(), strict=True))


def by_hand(sessions: list[Session]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = []
    for clicks, _ in sessions:
        counts = [0.0] * NUM_FEATURES
        for click in clicks:
            counts[click] = counts[click] * 0.99 + 1.0 / (1.0 + abs(click - NUM_FEATURES // 2) ** 0.5)  # fault
        rows.append(counts)
    return torch.tensor(rows), torch.tensor([float(wanted) for _, wanted in sessions])


def at_once(sessions: list[Session]) -> tuple[torch.Tensor, torch.Tensor]:
    clicks = torch.stack([clicks for clicks, _ in sessions])
    counts = torch.zeros(len(sessions), NUM_FEATURES).scatter_add_(1, clicks, torch.ones(clicks.shape))
    return counts, torch.tensor([float(wanted) for _, wanted in sessions])


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    collate = at_once if is_healthy else by_hand
    loader = DataLoader(make_sessions(is_healthy), batch_size=BATCH_SIZE, shuffle=True, collate_fn=collate)  # type: ignore[arg-type]
    model = nn.Sequential(nn.Linear(NUM_FEATURES, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for counts, wanted in loader:
        loss = functional.binary_cross_entropy_with_logits(model(counts)[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
