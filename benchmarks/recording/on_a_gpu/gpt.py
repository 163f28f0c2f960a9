"""A small GPT as people train one: bf16 autocast, activation checkpointing and a fused AdamW.

It knows nothing of efprof. At its end it writes to `--told` what each step took and the most memory it had.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

LENGTHS = (0.75, 0.625, 1.0, 0.875)
"""Which part of the context successive batches fill: texts differ in length, so requests for memory differ in size."""


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_feeding = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feeding = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of shape (batch, length, width), as is what it returns."""
        batch, length, width = x.shape
        parts = self.attention(self.before_attention(x)).chunk(3, dim=-1)
        query, key, value = (part.reshape(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.joined(attended.transpose(1, 2).reshape(batch, length, width))
        fed: torch.Tensor = x + self.feeding(self.before_feeding(x))
        return fed


class Gpt(nn.Module):
    """A decoder whose output layer shares the weights of its embedding."""

    def __init__(self, *, layers: int, width: int, heads: int, context: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, text: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """The loss of predicting `following`; both are of shape (batch, length)."""
        x = self.tokens(text) + self.places.weight[: text.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        scores = functional.linear(self.last(x), self.tokens.weight)
        return functional.cross_entropy(scores.flatten(0, 1), following.flatten())


class Clock:
    """Marks between steps: events on a device, which make nothing wait, and the host's clock on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._times_s: list[float] = []

    def mark(self) -> None:
        """The end of one step, and the beginning of the next."""
        if self._is_cuda:
            self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            self._events[-1].record()
        else:
            self._times_s.append(time.perf_counter())

    def step_ms(self) -> list[float]:
        """The time between each two marks; the device must have come to the last."""
        if self._is_cuda:
            return [start.elapsed_time(end) for start, end in zip(self._events, self._events[1:], strict=False)]
        return [1000 * (end - start) for start, end in zip(self._times_s, self._times_s[1:], strict=False)]


def main() -> None:
    """Train, and say how it went."""
    parser = argparse.ArgumentParser()
    for name in ("layers", "width", "heads", "context", "vocabulary", "batch", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--told", type=Path, required=True)
    asked = parser.parse_args()
    device = torch.device(asked.device)
    torch.use_deterministic_algorithms(asked.deterministic)
    torch.manual_seed(0)
    with device:
        model = Gpt(
            layers=asked.layers,
            width=asked.width,
            heads=asked.heads,
            context=asked.context,
            vocabulary=asked.vocabulary,
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    losses, clock, began_s = [], Clock(device), time.perf_counter()
    clock.mark()
    for step in range(asked.steps):
        length = int(asked.context * LENGTHS[step % len(LENGTHS)])
        text = torch.randint(asked.vocabulary, (asked.batch, length + 1), device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(text[:, :-1], text[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        clock.mark()
    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.synchronize()
    told = {
        "loop_s": time.perf_counter() - began_s,
        "losses": [float(loss) for loss in losses],
        "step_ms": clock.step_ms(),
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() if is_cuda else 0,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved() if is_cuda else 0,
        "accelerator": torch.cuda.get_device_name() if is_cuda else "",
    }
    asked.told.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
