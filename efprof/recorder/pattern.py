"""The calls of a step in their order, by which steps are known to be alike."""

from dataclasses import dataclass, field
from typing import Final

from efprof.artifacts.pending import MAX_MARKS, Stretch, stretches_of

FETCH, FETCHED, FORWARD, FORWARDED, BACKWARD, BACKWARDED, STEP, STEPPED, UPDATE, UPDATED, OTHER = range(11)
"""What can be marked: even numbers begin a stage, odd ones end it. OTHER is a call that no sprint allows."""

OPENERS: Final = {FETCH: "fetch", FORWARD: "forward", BACKWARD: "backward", STEP: "optimizer", UPDATE: "update"}

NUM_ALIKE: Final = 3
"""Steps of one pattern before the first sprint."""

Codes = tuple[int, ...]
Loaders = tuple[int | None, ...]
Optimizers = tuple[int, ...]
"""By their `id`."""


@dataclass(kw_only=True, slots=True)
class Pattern:
    """The calls of the last steps, and what else they had in common."""

    codes: Codes = ()
    is_plain: bool = False
    num_alike: int = 0
    optimizers: Optimizers = ()
    loaders: Loaders = ()
    stretches: list[Stretch] = field(default_factory=list)
    num_backwards: int = 0
    num_fetches: int = 0

    def see(self, codes: Codes, loaders: Loaders, optimizers: Optimizers) -> None:
        """A step had these calls, its batches from these loaders, and its updates by these optimizers."""
        if (codes, loaders, optimizers) == (self.codes, self.loaders, self.optimizers):
            self.num_alike = min(2 * NUM_ALIKE, self.num_alike + 1)
            return
        self.num_alike -= 1
        if self.num_alike <= 0:
            self.codes, self.loaders, self.optimizers = codes, loaders, optimizers
            self.num_alike, self.is_plain = 1, _is_plain(codes, len(optimizers))
            self.stretches = stretches_of(codes) if self.is_plain else []
            self.num_backwards, self.num_fetches = codes.count(BACKWARD), codes.count(FETCH)

    @property
    def is_settled(self) -> bool:
        """Whether a sprint may count on it."""
        return self.is_plain and self.num_alike >= NUM_ALIKE


def _is_plain(codes: Codes, num_optimizers: int) -> bool:
    """Stages that follow one another, a step of each optimizer, nothing that is not allowed."""
    if not 0 < len(codes) <= MAX_MARKS or codes.count(STEP) != num_optimizers or not {STEP, BACKWARD} <= set(codes):
        return False
    return codes[1::2] == tuple(code + 1 for code in codes[::2]) and OPENERS.keys() >= set(codes[::2])
