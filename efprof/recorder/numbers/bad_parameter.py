"""Finds the first parameter that is not finite, once a loss was not; a search of the whole heap."""

from collections.abc import Iterator
from typing import Any

import torch

from efprof.artifacts.events import BadParameter
from efprof.recorder.numbers.step_numbers import living, read_value


def find_bad_parameter() -> BadParameter | None:
    """Returns None if all that can be read without waiting are finite."""
    for optimizer, group, parameter in _optimized():
        bad = ~torch.isfinite(parameter.detach())
        num_bad = int(read_value(bad.sum()))
        if num_bad:
            return BadParameter(
                name=_name_of(parameter),
                dtype=str(parameter.dtype).removeprefix("torch."),
                num_bad=num_bad,
                num_elements=parameter.numel(),
                optimizer=type(optimizer).__name__,
                eps=group.get("eps"),
                has_finite_state=_has_finite_state(optimizer.state.get(parameter), bad),
            )
    return None


def _optimized() -> Iterator[tuple[torch.optim.Optimizer, dict[str, Any], torch.Tensor]]:
    for optimizer in living(torch.optim.Optimizer):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if type(parameter.data) is torch.Tensor and parameter.is_cpu:
                    yield optimizer, group, parameter


def _has_finite_state(state: dict[str, Any] | None, bad: torch.Tensor) -> bool:
    values = [one for one in (state or {}).values() if isinstance(one, torch.Tensor)]
    alike = [one for one in values if one.shape == bad.shape and one.is_floating_point()]
    return any(bool(read_value(torch.isfinite(one[bad]).all())) for one in alike)


def _name_of(parameter: torch.Tensor) -> str:
    """As its own module calls it: `Linear.weight`; else its shape."""
    for module in living(torch.nn.Module):
        for name, own in vars(module).get("_parameters", {}).items():
            if own is parameter:
                return f"{type(module).__name__}.{name}"
    return f"the parameter of shape {list(parameter.shape)}"
