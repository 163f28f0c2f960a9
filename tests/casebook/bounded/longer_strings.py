"""A transformer that copies strings, short ones first: every 40 steps they get longer, as planned."""

import torch
from torch import nn
from torch.nn import functional

EXPECTED = ()
LENGTHS = (8, 12, 16, 24, 32, 40)
SYMBOLS = 12


class Reader(nn.Module):
    """Strings and as many blanks, [batch, 2 * length] -> scores of symbols [batch, 2 * length, SYMBOLS]."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.symbol = nn.Embedding(SYMBOLS + 1, width)
        self.place = nn.Embedding(128, width)
        layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=True)
        self.trunk = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, strings: torch.Tensor) -> torch.Tensor:
        places = self.place(torch.arange(strings.shape[1]))
        return self.head(self.trunk(self.symbol(strings) + places))


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, 1.0, total_iters=30)
    for length in LENGTHS:
        for _ in range(40):
            text = torch.randint(SYMBOLS, (24, length))
            strings = torch.cat([text, torch.full_like(text, SYMBOLS)], dim=1)
            loss = functional.cross_entropy(model(strings)[:, length:].flatten(0, 1), text.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


if __name__ == "__main__":
    train()
