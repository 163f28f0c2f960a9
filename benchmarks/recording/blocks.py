"""A block of steps, as it is asked for and as it is answered, and how a block's steps become one figure."""

import statistics
from typing import Any, Literal

import msgspec

from efprof.recorder.budget.sampling import EARLY_STEPS

SHARE_KEPT = 0.9
"""Of a block's steps, the fastest: what another program takes from the rest is not ours, while a cost that comes
with every tenth step still counts."""

STEPS_TO_SETTLE = EARLY_STEPS
"""Before a recorded block is timed: up to there, bursts come more often, at the expense of the allowance."""

Under = Literal["nothing", "efprof", "torch.profiler"]

Side = Literal["bare", "recorded", "light", "full"]
"""Without the recorder; with it, as it likes; with it, every step light, or every step in full."""


class SwitchRequest(msgspec.Struct, kw_only=True, tag=True):
    """Slices of `steps` steps of each side by turns, for so long, within one recording.

    So many `slices` of each make a round.
    """

    seconds: float
    steps: int
    slices: int
    sides: tuple[Side, ...] = ("bare", "recorded")
    is_compiled: bool = False
    """Whether the loop's model is compiled first."""
    options: dict[str, Any] = {}


class BlockRequest(msgspec.Struct, kw_only=True, tag=True):
    """`steps` to be timed after `warm_up` others, under a tool that is started before them and ended after them."""

    warm_up: int
    steps: int
    under: Under = "nothing"
    options: dict[str, Any] = {}
    """Of `efprof.record`."""


class SwitchTimes(msgspec.Struct, kw_only=True):
    """Milliseconds per step of each side's slices in each round, by CPU time and by the wall."""

    cpu_ms: dict[Side, list[float]]
    wall_ms: dict[Side, list[float]]
    folder: str


class BlockTimes(msgspec.Struct, kw_only=True):
    """The timed steps; `around_s` is what starting and ending the tool took, `folder` where it wrote."""

    times_ms: list[float]
    cpu_ms: float
    around_s: float
    peak_bytes: int
    folder: str | None = None

    @property
    def step_ms(self) -> float:
        """The mean of the fastest steps."""
        return statistics.fmean(sorted(self.times_ms)[: max(1, round(len(self.times_ms) * SHARE_KEPT))])
