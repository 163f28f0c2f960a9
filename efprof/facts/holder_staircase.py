"""How much each holder that grew had, every time that Python's objects were counted."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from efprof.artifacts.holders import HolderCensus, read_censuses
from efprof.facts.holder_lines import HolderLines, bytes_after, bytes_before
from efprof.facts.run import Run

MOST_HOLDERS: Final = 5
"""More curves are not told from each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Staircase:
    """One holder's tensors and graphs; `sizes` are (step, bytes) in order of steps."""

    path: str
    sizes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class HolderStaircase:
    """Those of the last census, most growth first."""

    holders: tuple[Staircase, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Look the holders up in every census; raises NotRecorded where none was taken."""
        censuses = read_censuses(run.rank_folder)
        whole = [census for census in censuses if not census.is_partial] or censuses
        paths = dict.fromkeys(growth.holder.path for growth in run.get(HolderLines).holders)
        sizes = _sizes(whole)
        return cls(
            holders=tuple(Staircase(path=path, sizes=tuple(sorted(sizes[path].items()))) for path in paths)[
                :MOST_HOLDERS
            ]
        )


def _sizes(censuses: Sequence[HolderCensus]) -> dict[str, dict[int, int]]:
    """By path and step. Two objects may have one path; of two counts at one step the later census saw more."""
    found: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for census in censuses:
        for step, size_of in ((census.step_before, bytes_before), (census.step_after, bytes_after)):
            counted: Counter[str] = Counter()
            for holder in census.holders:
                counted[holder.path] += size_of(holder)
            for path, num_bytes in counted.items():
                found[path][step] = num_bytes
    return found
