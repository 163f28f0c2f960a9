"""A classifier of texts whose data worker counts the words one by one in a tensor."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

EXPECTED = "input_stall"
NUM_WORDS, NUM_IN_TEXT, BATCH_SIZE, NUM_STEPS = 1024, 400, 32, 100


class BagsOfWords(Dataset[tuple[torch.Tensor, int]]):
    """How often each word occurs in a text: [words]; the class is the topic that its words belong to."""

    def __init__(self, num_texts: int, is_healthy: bool) -> None:
        generator = torch.Generator().manual_seed(1)
        self.topics = torch.randint(0, 4, (num_texts,), generator=generator)
        words = torch.randint(0, NUM_WORDS // 4, (num_texts, NUM_IN_TEXT), generator=generator)
        self.texts = 4 * words + self.topics[:, None]
        self.count = count_at_once if is_healthy else count_one_by_one

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.count(self.texts[index]), int(self.topics[index])


def count_one_by_one(text: torch.Tensor) -> torch.Tensor:
    counts = torch.zeros(NUM_WORDS)
    for word in text.tolist():
        counts[word] += 1  # slow
    return counts


def count_at_once(text: torch.Tensor) -> torch.Tensor:
    return torch.bincount(text, minlength=NUM_WORDS).float()


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(NUM_WORDS, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 4))


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    texts = BagsOfWords(NUM_STEPS * BATCH_SIZE, is_healthy)
    loader = DataLoader(texts, batch_size=BATCH_SIZE, num_workers=1)  # fault
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for counts, topics in loader:
        loss = functional.cross_entropy(model(counts), topics)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
