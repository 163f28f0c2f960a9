"""A classifier of sequences that empties the allocator's cache after every step, in the hope of lower memory."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "cache_flush_in_loop"
DEVICE = "cuda"

VOCABULARY, WIDTH, NUM_CLASSES = 1000, 256, 10


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    embedding = nn.EmbeddingBag(VOCABULARY, WIDTH).to(DEVICE)
    head = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, NUM_CLASSES)).to(DEVICE)
    optimizer = torch.optim.AdamW([*embedding.parameters(), *head.parameters()], lr=1e-3)
    for _ in range(120):
        words = torch.randint(VOCABULARY, (4096, 64), device=DEVICE)
        labels = torch.randint(NUM_CLASSES, (4096,), device=DEVICE)
        loss = functional.cross_entropy(head(embedding(words)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not is_healthy:
            torch.cuda.empty_cache()  # fault


if __name__ == "__main__":
    train("--healthy" in sys.argv)
