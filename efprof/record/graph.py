"""Walks an autograd graph, before backward frees it, to where a non-finite value was born."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from efprof.artifacts.events import SuspectOperation

MAX_NODES = 100_000
"""A walk of this many nodes takes about a second, once in a run; a longer graph is cut off."""

MAX_SUSPECTS = 5

_read = torch.Tensor.item


class Singularity(NamedTuple):
    """Which saved tensor to judge an operation by, for which of its values the result is not finite, in words."""

    saved: str
    is_bad: Callable[[Any, torch.Tensor], torch.Tensor]
    words: str


def _is_bad_after(operation: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    return lambda _, operand: ~torch.isfinite(operation(operand))


def _is_bad_itself(_: Any, result: torch.Tensor) -> torch.Tensor:
    return ~torch.isfinite(result)


def _is_bad_power(node: Any, base: torch.Tensor) -> torch.Tensor:
    return ~torch.isfinite(torch.pow(base, node._saved_exponent))


SINGULARITIES: dict[str, Singularity] = {
    "LogBackward0": Singularity("self", _is_bad_after(torch.log), "arguments that are zero or negative"),
    "Log2Backward0": Singularity("self", _is_bad_after(torch.log2), "arguments that are zero or negative"),
    "Log10Backward0": Singularity("self", _is_bad_after(torch.log10), "arguments that are zero or negative"),
    "Log1PBackward0": Singularity("self", _is_bad_after(torch.log1p), "arguments that are -1 or less"),
    "DivBackward0": Singularity("other", lambda _, divisor: divisor == 0, "divisors that are zero"),
    "ReciprocalBackward0": Singularity("result", _is_bad_itself, "reciprocals of zero"),
    "SqrtBackward0": Singularity("result", _is_bad_itself, "roots of negative numbers"),
    "RsqrtBackward0": Singularity("result", _is_bad_itself, "inverse roots of zero or less"),
    "ExpBackward0": Singularity("result", _is_bad_itself, "exponentials that overflow"),
    "Expm1Backward0": Singularity("result", _is_bad_itself, "exponentials that overflow"),
    "AcosBackward0": Singularity("self", _is_bad_after(torch.acos), "arguments outside -1 to 1"),
    "AsinBackward0": Singularity("self", _is_bad_after(torch.asin), "arguments outside -1 to 1"),
    "AtanhBackward0": Singularity("self", _is_bad_after(torch.atanh), "arguments outside -1 to 1"),
    "AcoshBackward0": Singularity("self", _is_bad_after(torch.acosh), "arguments below 1"),
    "PowBackward0": Singularity("self", _is_bad_power, "bases whose power is not finite"),
    "PowBackward1": Singularity("result", _is_bad_itself, "powers that are not finite"),
    "SoftmaxBackward0": Singularity("result", _is_bad_itself, "rows in which every score is -inf"),
    "LogSoftmaxBackward0": Singularity("result", lambda _, result: torch.isnan(result), "rows of -inf scores"),
}
"""Judged by what the autograd graph saved: the result itself where it is saved, else the operation done again."""


def find_suspects(root: torch.Tensor, sequence_start: int) -> list[SuspectOperation]:
    """The operations whose own inputs are finite and whose result is not, in the order they ran.

    `sequence_start` is autograd's sequence number at the forward pass's start. A node whose other saved
    tensors are bad already only passes the fault on, and is left out.
    """
    nodes = sorted(_nodes(root), key=lambda node: int(node._sequence_nr()))
    suspects = []
    for node in nodes:
        suspect = _singular(node, sequence_start) or _overflowing(node, sequence_start)
        if suspect is not None:
            suspects.append(suspect)
        if len(suspects) == MAX_SUSPECTS:
            break
    return suspects


def _nodes(root: torch.Tensor) -> Iterator[Any]:
    if root.grad_fn is None:
        return
    seen, todo = {root.grad_fn}, [root.grad_fn]
    while todo and len(seen) < MAX_NODES:
        node = todo.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)


def _singular(node: Any, sequence_start: int) -> SuspectOperation | None:
    singularity = SINGULARITIES.get(node.name())
    if singularity is None:
        return None
    operand = _saved(node, singularity.saved)
    if operand is None or not operand.is_floating_point():
        return None
    if singularity.saved != "result" and not _is_finite(operand):
        return None
    with torch.no_grad():
        num_bad = int(_read(singularity.is_bad(node, operand).sum()))
    if num_bad == 0 or _inherits(node, singularity.saved):
        return None
    return _suspect(node, sequence_start, singularity.words, num_bad, operand)


def _overflowing(node: Any, sequence_start: int) -> SuspectOperation | None:
    """An operation whose result somebody saved non-finite although its own saved inputs are finite."""
    if node.name() in SINGULARITIES or not node.next_functions:
        return None
    consumed = _saved(node, "result")
    if consumed is None or not consumed.is_floating_point() or _is_finite(consumed) or _inherits(node, "result"):
        return None
    with torch.no_grad():
        num_bad = int(_read((~torch.isfinite(consumed)).sum()))
    return _suspect(node, sequence_start, "results that are not finite", num_bad, consumed)


def _inherits(node: Any, but: str) -> bool:
    """Whether a saved input of this node, or the result of what feeds it, is bad already."""
    inputs = [
        name for name in dir(node) if name.startswith("_saved_") and name not in (f"_saved_{but}", "_saved_result")
    ]
    tensors = [getattr(node, name) for name in inputs]
    tensors += [_saved(feeder, "result") for feeder, _ in node.next_functions if feeder is not None]
    return any(
        isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and not _is_finite(tensor) for tensor in tensors
    )


def _saved(node: Any, name: str) -> torch.Tensor | None:
    try:
        tensor = getattr(node, f"_saved_{name}", None)
    except RuntimeError:  # freed by an earlier backward
        return None
    return tensor.detach() if isinstance(tensor, torch.Tensor) else None


def _is_finite(tensor: torch.Tensor) -> bool:
    with torch.no_grad():
        return bool(_read(torch.isfinite(tensor).all()))


def _suspect(node: Any, start: int, words: str, num_bad: int, operand: torch.Tensor) -> SuspectOperation:
    return SuspectOperation(
        node=node.name(),
        offset=int(node._sequence_nr()) - start,
        operand=words,
        num_bad=num_bad,
        num_elements=operand.numel(),
        dtype=str(operand.dtype).removeprefix("torch."),
    )
