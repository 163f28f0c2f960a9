"""Finds where a non-finite value was born: in an operation of autograd's graph, or in a parameter."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from efprof.artifacts.events import BadParameter, SuspectOperation
from efprof.recorder.numbers.step_numbers import feeders_of, living, nodes_behind, nodes_of, read_value, saved_names

MAX_NODES = 100_000
"""A walk of this many nodes takes about a second, once in a run; a longer graph is cut off."""

MAX_SUSPECTS = 5


class Singularity(NamedTuple):
    """Which saved tensor to judge an operation by, for which of its values the result is not finite, in words."""

    saved: str
    is_bad: Callable[[Any, torch.Tensor], torch.Tensor]
    words: str


LARGEST_USUAL = 1e9
"""A value beyond it is itself the fault: that its square overflows only shows what went wrong before."""


BAD_RESULTS = {
    "ReciprocalBackward0": "reciprocals of zero",
    "SqrtBackward0": "roots of negative numbers",
    "RsqrtBackward0": "inverse roots of zero or less",
    "ExpBackward0": "exponentials that overflow",
    "PowBackward1": "powers that are not finite",
    "SoftmaxBackward0": "rows in which every score is -inf",
}
"""Operations whose saved result is not finite itself."""
SINGULARITIES: dict[str, Singularity] = {
    **{name: Singularity("result", lambda _, x: ~torch.isfinite(x), words) for name, words in BAD_RESULTS.items()},
    **dict.fromkeys(
        ("LogBackward0", "Log2Backward0", "Log10Backward0"),
        Singularity("self", lambda _, x: x <= 0, "arguments that are zero or negative"),
    ),
    "Log1PBackward0": Singularity("self", lambda _, x: x <= -1, "arguments that are -1 or less"),
    "DivBackward0": Singularity("other", lambda _, divisor: divisor == 0, "divisors that are zero"),
    **dict.fromkeys(
        ("AcosBackward0", "AsinBackward0"),
        Singularity("self", lambda _, x: x.abs() > 1, "arguments outside -1 to 1"),
    ),
    "PowBackward0": Singularity(
        "self",
        lambda node, base: ~torch.isfinite(base**node._saved_exponent) & (base.abs() < LARGEST_USUAL),
        "bases whose power is not finite",
    ),
    "LogSoftmaxBackward0": Singularity("result", lambda _, result: torch.isnan(result), "rows of -inf scores"),
}
"""Judged by what the autograd graph saved: the result itself where it is saved, else what it was given."""


@torch.no_grad()
def find_suspects(root: torch.Tensor, sequence_start: int) -> list[SuspectOperation]:
    """The operations whose own inputs are finite and whose result is not, in order; else the first given bad data.

    Data is a tensor that requires no gradient: nothing computed from parameters feeds it, unless it was detached.
    `sequence_start` is autograd's sequence number at the forward pass's start. A node behind a bad one is left out.
    """
    suspects: list[SuspectOperation] = []
    given: SuspectOperation | None = None
    tainted = set[Any]()
    for node in _in_order(root):
        bad_input = _bad_input(node)
        if not tainted.isdisjoint(feeders_of(node)):
            tainted.add(node)
            continue
        suspect = _singular(node, sequence_start) if bad_input is None else None
        if suspect is not None:
            suspects.append(suspect)
        elif bad_input is not None and given is None and not bad_input.requires_grad:
            num_bad = int(read_value((~torch.isfinite(bad_input)).sum()))
            given = _suspect(node, sequence_start, "data that is NaN or Inf already", num_bad, bad_input)
        if suspect is not None or bad_input is not None:
            tainted.add(node)
        if len(suspects) == MAX_SUSPECTS:
            break
    return suspects or ([given] if given is not None else [])


def _in_order(root: torch.Tensor) -> list[Any]:
    return sorted(nodes_behind(nodes_of(root), MAX_NODES), key=lambda node: int(node._sequence_nr()))


def _bad_input(node: Any) -> torch.Tensor | None:
    for name in saved_names(node, "_saved_"):
        tensor = _saved(node, name) if name != "_saved_result" else None
        if tensor is not None and tensor.is_floating_point() and not _is_finite(tensor.clamp_min(0)):
            return tensor
    return None


def _singular(node: Any, sequence_start: int) -> SuspectOperation | None:
    singularity = SINGULARITIES.get(node.name())
    operand = None if singularity is None else _saved(node, f"_saved_{singularity.saved}")
    if singularity is None or operand is None or not operand.is_floating_point():
        return None
    if singularity.saved != "result" and not _is_finite(operand):
        return None
    num_bad = int(read_value(singularity.is_bad(node, operand).sum()))
    results = [_saved(feeder, "_saved_result") for feeder in feeders_of(node)]
    is_given_bad = any(one is not None and one.is_floating_point() and not _is_finite(one) for one in results)
    return None if num_bad == 0 or is_given_bad else _suspect(node, sequence_start, singularity.words, num_bad, operand)


def _saved(node: Any, name: str) -> torch.Tensor | None:
    """It requires a gradient where it was computed, or is a parameter."""
    try:
        tensor = getattr(node, name, None)
    except RuntimeError:  # freed by an earlier backward
        return None
    return tensor if isinstance(tensor, torch.Tensor) else None


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(read_value(torch.isfinite(tensor).all()))


def _suspect(node: Any, start: int, words: str, num_bad: int, operand: torch.Tensor) -> SuspectOperation:
    return SuspectOperation(
        node=node.name(),
        offset=int(node._sequence_nr()) - start,
        operand=words,
        num_bad=num_bad,
        num_elements=operand.numel(),
        dtype=str(operand.dtype).removeprefix("torch."),
    )


def find_bad_parameter() -> BadParameter | None:
    """The first one that is not finite, by a search of the whole heap.

    Returns None if all that can be read without waiting are finite.
    """
    for optimizer, group, parameter in _optimized():
        bad = ~torch.isfinite(parameter.detach())
        num_bad = int(read_value(bad.sum()))
        if num_bad:
            state = optimizer.state.get(parameter) or {}
            values = [one for one in state.values() if isinstance(one, torch.Tensor)]
            alike = [one for one in values if one.shape == bad.shape and one.is_floating_point()]
            return BadParameter(
                name=_name_of(parameter),
                dtype=str(parameter.dtype).removeprefix("torch."),
                num_bad=num_bad,
                num_elements=parameter.numel(),
                optimizer=type(optimizer).__name__,
                eps=group.get("eps"),
                has_finite_state=any(_is_finite(one[bad]) for one in alike),
            )
    return None


def _optimized() -> Iterator[tuple[torch.optim.Optimizer, dict[str, Any], torch.Tensor]]:
    for optimizer in living(torch.optim.Optimizer):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if type(parameter.data) is torch.Tensor and parameter.is_cpu:
                    yield optimizer, group, parameter


def _name_of(parameter: torch.Tensor) -> str:
    """As its own module calls it: `Linear.weight`; else its shape."""
    for module in living(torch.nn.Module):
        for name, own in vars(module).get("_parameters", {}).items():
            if own is parameter:
                return f"{type(module).__name__}.{name}"
    return f"the parameter of shape {list(parameter.shape)}"
