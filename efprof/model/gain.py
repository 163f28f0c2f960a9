"""What a fix is predicted to save, and how that is known."""

from dataclasses import dataclass
from typing import Literal

Basis = Literal["measured bound", "replay", "model"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gain:
    """A predicted saving; None where the fix does not touch that resource or nothing may be claimed.

    `step_ms` is milliseconds per step, `peak_bytes` bytes off this run's peak; the intervals are
    (low, high) of the same. `basis` is how it is known: a bound that was measured, a replay of what
    was recorded, or a model; `explanation` says it in one sentence. `until_step` is the last step up to which
    the peak was known, where the run went on for long after it: the whole run's saving is no less than that.
    """

    basis: Basis
    explanation: str
    step_ms: float | None = None
    peak_bytes: int | None = None
    step_ms_interval: tuple[float, float] | None = None
    peak_bytes_interval: tuple[float, float] | None = None
    until_step: int | None = None
