"""The learning rate of each step, on the device, where alone it is known in time which steps were skipped."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from energy_flow.energy_config import BackoffConfig, OptimizerConfig


def learning_rates(optimizer: OptimizerConfig, num_steps: int) -> Tensor:
    """The learning rate of each of `num_steps` steps, [num_steps] float32: a linear warm-up, then half a cosine.

    The whole rate is reached at step `warmup_steps`, its final share at the last step; a warm-up that is longer than
    the run is cut off with it. Source of the cosine: Loshchilov and Hutter, SGDR, arXiv 1608.03983.
    """
    number = torch.arange(1, num_steps + 1, dtype=torch.float64)
    warmup = (number / max(1, optimizer.warmup_steps)).clamp(max=1)
    done = ((number - optimizer.warmup_steps) / max(1, num_steps - optimizer.warmup_steps)).clamp(min=0)
    final = optimizer.final_learning_rate_share
    cosine = final + (1 - final) * (1 + torch.cos(math.pi * done)) / 2
    return (optimizer.learning_rate * warmup * cosine).float()


class LearningRateSchedule:
    """Looks the learning rate up by the number of steps taken, without asking the device for that number."""

    def __init__(self, optimizer: OptimizerConfig, num_steps: int, device: torch.device) -> None:
        """Compute the rates of a run of `num_steps` steps once."""
        self.is_constant = optimizer.warmup_steps == 0 and optimizer.final_learning_rate_share == 1
        self._rates = learning_rates(optimizer, 1 if self.is_constant else num_steps).to(device)

    def at(self, global_step: Tensor) -> Tensor:
        """The rate, [] float32, of the step after `global_step` ([] int64) taken ones; beyond the end, the last one."""
        if self.is_constant:
            return self._rates[0]
        # An index in brackets would be read on the host.
        return self._rates.index_select(0, global_step.clamp(max=len(self._rates) - 1).view(1)).squeeze(0)


class LearningRateBackoff:
    """Lowers the learning rate while gradient norms jump beyond the median of the last ones.

    All of it is on the device: what the host learned late, each rank of a distributed run would learn at a moment
    of its own, and their weights would drift apart.
    """

    def __init__(self, config: BackoffConfig, device: torch.device) -> None:
        """Start with the whole learning rate and no history."""
        self.config = config
        self.share = torch.ones((), device=device)  # of the schedule's learning rate
        self.num_calm = torch.zeros((), dtype=torch.int64, device=device)  # steps since the last high norm
        self.norms = torch.full((config.window,), math.nan, device=device)  # the last finite ones, newest last

    def observe(self, norm: Tensor) -> Tensor:
        """Take in a step's gradient norm ([], before clipping); give the share, [] float32, that the step may use.

        A norm that is not finite changes nothing, and nothing happens before `window` norms were seen: the median
        of a history with a gap is NaN, which no norm exceeds.
        """
        is_finite = torch.isfinite(norm)
        is_high = is_finite & (norm >= self.config.trigger * self.norms.median())
        num_calm = torch.where(is_high, 0, self.num_calm + is_finite)
        lowered = (self.share * self.config.factor).clamp(min=self.config.lowest)
        recovered = torch.where(num_calm >= self.config.recovery_steps, 1.0, self.share)
        self.share = torch.where(is_high, lowered, recovered)
        self.num_calm = num_calm
        self.norms = torch.where(is_finite, torch.cat([self.norms[1:], norm.view(1)]), self.norms)
        return self.share

    def state_dict(self) -> dict[str, Tensor]:
        """What the next step depends on."""
        return {"share": self.share, "num_calm": self.num_calm, "norms": self.norms}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a state; a history for another window is dropped."""
        self.share, self.num_calm = state["share"].to(self.share), state["num_calm"].to(self.num_calm)
        if state["norms"].shape == self.norms.shape:
            self.norms = state["norms"].to(self.norms)
