"""Documents one by one, then many as one batch, on a device shared with others: each evicts what the other cached.

What is smaller than a mebibyte lies in segments of its own, so neither kind of batch can use the other's memory.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "allocation_retries"
DEVICE = "cuda"
OPTIONS = ("--memory-steps", "0:8", "--trace-steps", "none", "--triggers", "none")

LIMIT_BYTES = 204 * 1024**2
"""What this program may take of its device: enough for either kind of batch, not for both."""
WIDTH, LENGTH, NUM_DOCUMENTS = 256, 1024, 24
"""A document's activation takes 1 MiB, that of all together 24."""


class Encoder(nn.Module):
    """[..., WIDTH] -> the same."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))  # fault
        return hidden


def limit_memory() -> None:
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(LIMIT_BYTES / total)


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    limit_memory()
    model = Encoder().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(32):
        documents = torch.randn(NUM_DOCUMENTS, LENGTH, WIDTH, device=DEVICE)
        if step % 2 and not is_healthy:
            losses = [functional.mse_loss(model(document), document) for document in documents]
            loss = torch.stack(losses).mean()
        else:
            loss = functional.mse_loss(model(documents), documents)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
