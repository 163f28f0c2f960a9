"""A transformer language model that logs the gradient norm of every parameter, reading each one to Python."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "blocking_scalar_read"


class LanguageModel(nn.Module):
    """Byte-level; tokens [batch, length] -> logits [batch, length, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 64)
        layer = nn.TransformerEncoderLayer(64, nhead=4, dim_feedforward=128, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(tokens)))


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = torch.frombuffer(bytearray(sys.version.encode() * 4000), dtype=torch.uint8).long()
    norms: list[float] = []
    largest = torch.zeros(())
    for step in range(60):
        window = text[step * 512 : step * 512 + 16 * 33].view(16, 33)
        logits = model(window[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            norm = parameter.grad.norm()
            if is_healthy:
                largest = torch.maximum(largest, norm)
            else:
                norms.append(norm.item())  # fault
        if is_healthy and step % 20 == 19:
            norms.append(largest.item())
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
