"""A text classifier that runs its encoder once for each text of the batch, where one call would do."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "repeated_forward"


class Encoder(nn.Module):
    """Tokens [batch, length] -> one vector for each text [batch, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 256)
        self.widen, self.narrow = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.narrow(functional.gelu(self.widen(self.embed(tokens).mean(dim=1))))


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    encoder, head = Encoder(), nn.Linear(256, 4)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=1e-3)
    for _ in range(60):
        texts = torch.randint(256, (10, 24))
        labels = texts[:, 0] // 64
        optimizer.zero_grad()
        encoded = [encoder(texts)] if is_healthy else []
        for text in [] if is_healthy else texts:
            encoded.append(encoder(text.unsqueeze(0)))  # fault
        loss = functional.cross_entropy(head(torch.cat(encoded)), labels)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
