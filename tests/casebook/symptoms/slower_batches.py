"""A search model whose first batch is fast and whose later ones are not: each is compared with all texts before it."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = ("step_slowdown", "growing_tensors")
OPTIONS = ("--trace-steps", "20:22,200:202")
"""Windows that come whatever the machine does: a run of hours has its own at steps 300 and 3000."""
NUM_KEPT = 8


class Search(nn.Module):
    """Questions and answers [batch, 256] -> a loss: each question is to find its answer among all that were given."""

    def __init__(self) -> None:
        super().__init__()
        self.question = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
        self.answer = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
        self.others: list[torch.Tensor] = []

    def forward(self, questions: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        asked, given = self.question(questions), self.answer(answers)
        likeness = [asked @ other.T for other in (given, *self.others)]  # fault: step_slowdown
        self.others.append(given.detach())  # fault: growing_tensors
        return functional.cross_entropy(torch.cat(likeness, dim=1), torch.arange(len(asked)))


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Search()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(240):
        answers = torch.randn(48, 256)
        loss = model(answers + torch.randn(48, 256), answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if is_healthy:
            del model.others[:-NUM_KEPT]


if __name__ == "__main__":
    train("--healthy" in sys.argv)
