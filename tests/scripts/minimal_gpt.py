"""A character model with a `get_batch` in place of a loader, the next batch fetched while this one is trained on."""

import logging
import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

block_size, batch_size, vocabulary = 16, 8, 32
max_iters, eval_interval, eval_iters = 12, 5, 4
gradient_accumulation_steps = 2
learning_rate, warmup_iters, grad_clip = 1e-3, 3, 1.0

logging.basicConfig(format="%(created)f %(message)s", level=logging.INFO)
torch.manual_seed(1337)
data = {split: torch.randint(0, vocabulary, (2000,)) for split in ("train", "val")}


class GPT(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(block_size, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mask = nn.Transformer.generate_square_subsequent_mask(idx.size(1))
        x = self.tokens(idx) + self.positions(torch.arange(idx.size(1)))
        logits = self.head(self.block(x, src_mask=mask, is_causal=True))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(data[split]) - block_size, (batch_size,))
    x = torch.stack([data[split][i : i + block_size] for i in starts])
    y = torch.stack([data[split][i + 1 : i + 1 + block_size] for i in starts])
    return x, y


@torch.no_grad()
def estimate_loss(model: GPT) -> dict[str, float]:
    out = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            losses[k] = model(*get_batch(split))[1].item()
            logging.info("evaluating")
        out[split] = losses.mean().item()
    model.train()
    return out


def get_lr(iteration: int) -> float:
    if iteration < warmup_iters:
        return learning_rate * (iteration + 1) / warmup_iters
    return learning_rate * 0.5 * (1 + math.cos(math.pi * iteration / max_iters))


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
X, Y = get_batch("train")
for iter_num in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0:
        print(f"step {iter_num}: {estimate_loss(model)}")
    for _ in range(gradient_accumulation_steps):
        _, loss = model(X, Y)
        loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps}")
