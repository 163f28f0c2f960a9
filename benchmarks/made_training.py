"""What a transformer asks of its allocator while it is trained, request by request; there is no transformer."""

import random
from collections.abc import Iterator
from itertools import count
from typing import Final, NamedTuple

LAYERS: Final = 48
HIDDEN: Final = 1600
HEADS: Final = 25
VOCABULARY: Final = 50257
"""All four as of GPT-2 XL: with Adam's states in float32 its training takes some 50 GiB."""

BATCH: Final = 4
LENGTHS: Final = (256, 1024)
"""The shortest and longest sequence: with each step's own length the sizes differ, and free blocks are split."""

LENGTH_UNIT: Final = 64

WEIGHTS: Final = {
    "norm_1.weight": HIDDEN, "norm_1.bias": HIDDEN, "qkv.weight": 3 * HIDDEN**2, "qkv.bias": 3 * HIDDEN,
    "projection.weight": HIDDEN**2, "projection.bias": HIDDEN, "norm_2.weight": HIDDEN, "norm_2.bias": HIDDEN,
    "up.weight": 4 * HIDDEN**2, "up.bias": 4 * HIDDEN, "down.weight": 4 * HIDDEN**2, "down.bias": HIDDEN,
}  # fmt: skip
"""Numbers per layer, of 4 bytes each."""

ACTIVATIONS: Final = {
    "norm_1": 2 * HIDDEN, "norm_1_statistics": 8, "qkv": 6 * HIDDEN, "attention": 2 * HIDDEN, "log_sum": 4 * HEADS,
    "projection": 2 * HIDDEN, "residual_1": 4 * HIDDEN, "norm_2": 2 * HIDDEN, "norm_2_statistics": 8,
    "up": 8 * HIDDEN, "gelu": 8 * HIDDEN, "down": 2 * HIDDEN, "dropout_mask": HIDDEN, "residual_2": 4 * HIDDEN,
}  # fmt: skip
"""Bytes per layer and token, in the order of the forward pass."""


class Place(NamedTuple):
    """Where in the program: each has a stack of its own."""

    phase: str
    layer: int
    operation: str


class Request(NamedTuple):
    """Memory for a tensor, or its return where `num_bytes` is 0."""

    place: Place
    tensor: str
    num_bytes: int = 0


def training() -> Iterator[Request]:
    """Requests without an end: parameters, then step after step."""
    lengths = random.Random(0)
    weights = {f"{layer}.{name}": 4 * numbers for layer in range(LAYERS) for name, numbers in WEIGHTS.items()}
    weights["embedding"] = 4 * HIDDEN * VOCABULARY
    for name, num_bytes in weights.items():
        yield Request(Place("build", 0, name.partition(".")[2] or name), name, num_bytes)
    for step in count():
        num_tokens = BATCH * lengths.randrange(LENGTHS[0], LENGTHS[1] + 1, LENGTH_UNIT)
        yield from _forward(num_tokens)
        yield from _backward(num_tokens)
        yield from _norms(weights)
        if step == 0:
            yield from _states(weights)
        yield from _update(weights)
        yield from (Request(Place("zero_grad", 0, "zero_grad"), f"{name}.grad") for name in reversed(weights))


def _forward(num_tokens: int) -> Iterator[Request]:
    """Activations stay for the backward pass; what an operation works with does not."""
    yield Request(Place("fetch", 0, "tokens"), "tokens", 8 * num_tokens)
    for layer in range(LAYERS):
        for name, num_bytes in ACTIVATIONS.items():
            at, within = Place("forward", layer, name), Place("forward", layer, f"{name}_workspace")
            yield Request(at, f"{layer}.{name}", num_bytes * num_tokens)
            yield Request(within, "workspace", _workspace_bytes(name, num_tokens))
            yield Request(within, "workspace")
    yield Request(Place("loss", 0, "logits"), "logits", 2 * VOCABULARY * num_tokens)
    yield Request(Place("loss", 0, "log_softmax"), "log_softmax", 4 * VOCABULARY * num_tokens)
    yield Request(Place("loss", 0, "mean"), "loss", 4)


def _backward(num_tokens: int) -> Iterator[Request]:
    """The last activation's gradient first; each gradient lives until the one before it is there."""
    at = Place("backward", 0, "logits")
    yield Request(at, "gradient", 2 * VOCABULARY * num_tokens)
    yield Request(at, "log_softmax")
    yield Request(at, "logits")
    previous = "gradient"
    for layer in reversed(range(LAYERS)):
        for name, num_bytes in reversed(ACTIVATIONS.items()):
            at, within = Place("backward", layer, name), Place("backward", layer, f"{name}_workspace")
            yield Request(at, f"{layer}.{name}.gradient", num_bytes * num_tokens)
            yield Request(within, "workspace", _workspace_bytes(name, num_tokens))
            for weight in (weight for weight in WEIGHTS if weight.startswith(f"{name}.")):
                yield Request(Place("backward", layer, weight), f"{layer}.{weight}.grad", 4 * WEIGHTS[weight])
            yield Request(within, "workspace")
            yield Request(at, previous)
            yield Request(at, f"{layer}.{name}")
            previous = f"{layer}.{name}.gradient"
    at = Place("backward", 0, "embedding")
    yield Request(at, "embedding.grad", 4 * HIDDEN * VOCABULARY)
    yield from (Request(at, name) for name in (previous, "tokens", "loss"))


def _workspace_bytes(name: str, num_tokens: int) -> int:
    """A matrix product takes its weights in bfloat16, the rest a few numbers per token."""
    return 2 * WEIGHTS[f"{name}.weight"] if f"{name}.weight" in WEIGHTS else 4 * num_tokens


def _norms(weights: dict[str, int]) -> Iterator[Request]:
    at = Place("clip", 0, "norm")
    yield from (Request(at, f"{name}.norm", 4) for name in weights)
    yield Request(Place("clip", 0, "stack"), "norms", 4 * len(weights))
    yield from (Request(at, f"{name}.norm") for name in weights)
    yield Request(Place("clip", 0, "stack"), "norms")


def _states(weights: dict[str, int]) -> Iterator[Request]:
    """Adam has two per parameter, which come with its first step and stay."""
    for name, num_bytes in weights.items():
        for state in ("exp_avg", "exp_avg_sq"):
            yield Request(Place("optimizer", 0, state), f"{name}.{state}", num_bytes)


def _update(weights: dict[str, int]) -> Iterator[Request]:
    """The `foreach` implementation makes each intermediate result for a list of parameters at once."""
    names = list(weights)
    for first in range(0, len(names), LAYERS):
        for operation in ("lerp", "sqrt"):
            at = Place("optimizer", first, operation)
            some = names[first : first + LAYERS]
            yield from (Request(at, f"{name}.{operation}", weights[name]) for name in some)
            yield from (Request(at, f"{name}.{operation}") for name in some)
