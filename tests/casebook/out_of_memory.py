"""A classifier of documents by attention: one document in a few hundred is long, and its scores take all memory.

Attention takes memory by the square of a document's length. The healthy twin cuts documents at a length.
"""

import resource
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "out_of_memory"

BATCH, WIDTH, NUM_CLASSES = 4, 64, 4
USUAL_LENGTH, LONGEST = 128, 12_288
"""The scores of the longest documents alone take 2.25 GiB."""
LONG_AT = 45
"""The step that meets them."""
ROOM_BYTES = 2 * 1024**3
"""What the process may still take when training begins, as on a machine with so much free."""


class Classifier(nn.Module):
    """Tokens of [batch, length, WIDTH] -> scores of the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, NUM_CLASSES)

    def forward(self, documents: torch.Tensor) -> torch.Tensor:
        queries, keys, values = self.parts(documents).chunk(3, dim=-1)
        scores = queries @ keys.transpose(1, 2)  # fault
        return self.head((scores.softmax(-1) @ values).mean(1))


def limit_memory() -> None:
    """Of what the process may address; a bare machine would swap and then kill it."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_BYTES, resource.RLIM_INFINITY))


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    limit_memory()
    for step in range(60):
        length = LONGEST if step == LONG_AT else USUAL_LENGTH
        if is_healthy:
            length = min(length, USUAL_LENGTH)
        documents, classes = torch.randn(BATCH, length, WIDTH), torch.randint(NUM_CLASSES, (BATCH,))
        loss = functional.cross_entropy(model(documents), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
