"""All is well: reviews come in the order of their lengths, so that each loss has a longer graph than the last one."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

EXPECTED = ()
WORDS = 500

Review = tuple[torch.Tensor, int]


class Judge(nn.Module):
    """Words [batch, length] of `lengths` [batch] -> whether the review is good, [batch]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 48, padding_idx=0)
        self.reader = nn.GRU(48, 64, batch_first=True)
        self.head = nn.Linear(64, 1)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        read, _ = self.reader(self.embed(words))
        last = read[torch.arange(len(words)), lengths - 1]
        return self.head(last).squeeze(1)


def collate(reviews: list[Review]) -> dict[str, torch.Tensor]:
    texts = [text for text, _ in reviews]
    return {
        "words": pad_sequence(texts, batch_first=True),
        "lengths": torch.tensor([len(text) for text in texts]),
        "is_good": torch.tensor([float(good) for _, good in reviews]),
    }


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    lengths = sorted(torch.randint(4, 90, (16 * 160,)).tolist())
    reviews: list[Review] = [(torch.randint(1, WORDS, (length,)), length % 2) for length in lengths]
    loader = DataLoader(reviews, batch_size=16, collate_fn=collate)
    model = Judge()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for batch in loader:
        is_good = batch.pop("is_good")
        loss = functional.binary_cross_entropy_with_logits(model(**batch), is_good)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train()
