"""Whether a holder was counted to get more and more, so that nothing took anything out of it, and how much it had."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from efprof.artifacts.holders import Holder, read_censuses
from efprof.facts.holder_lines import HolderGrowth
from efprof.facts.possible_values import UNKNOWN, Value
from efprof.facts.run import Run

Size = tuple[int, float]
"""(step, how much)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HolderCounts:
    """All counts of a holder: `most` is how many entries it has where each step adds one, from step to step."""

    is_rising: bool
    most: float
    first_step: int
    last_step: int

    @property
    def num_steps(self) -> int:
        """Between the first count and the last."""
        return self.last_step - self.first_step

    def may_hold(self, limits: frozenset[Value]) -> bool:
        """Whether one of these limits is not reached yet, give or take an entry; one that is not known may be."""
        return any(_is_above(limit, self.most) for limit in limits)


def counts_of(run: Run, growth: HolderGrowth, depth: int) -> HolderCounts:
    """Of a holder whose entries, where `depth` says that there are some, grow by themselves."""
    censuses = read_censuses(run.rank_folder)
    whole = [census for census in censuses if not census.is_partial] or censuses[-1:]
    stretches = [
        ((census.step_before, float(before)), (census.step_after, float(after)))
        for census in whole
        for holder in census.holders
        if (holder.scope, holder.path, holder.file) == (growth.holder.scope, growth.holder.path, growth.holder.file)
        for before, after in [_sizes(holder, is_of_entries=depth > 0)]
    ]
    (first_step, first), (last_step, last) = stretches[0][0], stretches[-1][1]
    rate = (last - first) / max(1, last_step - first_step)
    # Several objects may have one path, and are then counted together: their steps are what is compared.
    most = last_step - first_step if growth.holder.type == "Tensor" else last / max(1.0, rate)
    return HolderCounts(is_rising=_is_rising(stretches), most=most, first_step=first_step, last_step=last_step)


def _sizes(holder: Holder, *, is_of_entries: bool) -> tuple[float, float]:
    if holder.type == "Tensor":
        return holder.tensor_bytes_before, holder.tensor_bytes_after
    if is_of_entries and holder.length_after == holder.length_before > 0:
        return holder.tensors_before / holder.length_before, holder.tensors_after / holder.length_after
    return holder.length_before, holder.length_after


def _is_rising(stretches: Sequence[tuple[Size, Size]]) -> bool:
    """Whether it never falls, and each count ends above the last, by more than what is about to be taken out."""
    sizes = [size for stretch in stretches for _, size in stretch]
    ends = [stretches[0][0][1], *(end for _, (_, end) in stretches)]
    return (
        all(one <= later for one, later in pairwise(sizes))
        and all(one < later for one, later in pairwise(ends))
        and ends[-1] > ends[0] + 1
    )


def _is_above(limit: Value, most: float) -> bool:
    if limit is UNKNOWN:
        return True
    return isinstance(limit, int | float) and limit > 0 and limit + 1 >= most
