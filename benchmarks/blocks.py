"""A block of steps, as it is asked for and as it is answered, and how a block's steps become one figure."""

import statistics
from typing import Any, Literal

import msgspec

SHARE_KEPT = 0.9
"""Of a block's steps, the fastest: what another program takes from the rest is not ours, while a cost that comes
with every tenth step still counts."""

STEPS_TO_SETTLE = 70
"""Before a recorded block is timed: the recorder learns the loop's modules, and reads its first 60 steps in full."""

Under = Literal["nothing", "efprof", "torch.profiler"]


class SwitchRequest(msgspec.Struct, kw_only=True, tag=True):
    """Slices of `steps` bare steps and of as many recorded ones by turns, for so long, within one recording.

    So many `slices` of each make a round.
    """

    seconds: float
    steps: int
    slices: int
    options: dict[str, Any] = {}


class AtHooksRequest(msgspec.Struct, kw_only=True, tag=True):
    """So many `rounds` of so many `steps` without a recording and as many within one, timed at its hooks."""

    rounds: int
    steps: int
    options: dict[str, Any] = {}


class BlockRequest(msgspec.Struct, kw_only=True, tag=True):
    """`steps` to be timed after `warm_up` others, under a tool that is started before them and ended after them."""

    warm_up: int
    steps: int
    under: Under = "nothing"
    options: dict[str, Any] = {}
    """Of `efprof.record`."""


class SwitchTimes(msgspec.Struct, kw_only=True):
    """Milliseconds per step of the recorded slices of each round, and of the bare ones; by CPU time and by the wall."""

    recorded_cpu_ms: list[float]
    bare_cpu_ms: list[float]
    recorded_ms: list[float]
    bare_ms: list[float]
    folder: str


class AtHooksTimes(msgspec.Struct, kw_only=True):
    """Microseconds per step and round."""

    bare_us: list[float]
    recorded_us: list[float]


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
