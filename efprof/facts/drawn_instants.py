"""Which instants of a long history are drawn: so few that a page stays small, with every high and low among them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

MOST_INSTANTS: Final = 600
"""A picture this wide loses nothing."""


def drawn_instants(values: NDArray[np.int64], first: int, end: int, most: int = MOST_INSTANTS) -> NDArray[np.int64]:
    """The places of `values[first:end]` to draw, in order: all, or each stretch's highest and lowest, and the ends.

    Two fewer than `most`: room is left for what a caller must show.
    """
    if end - first <= most - 2:
        return np.arange(first, end)
    edges = np.linspace(first, end, (most - 4) // 2 + 1).astype(np.int64)
    found = {first, end - 1}
    for start, stop in pairwise(edges):
        stretch = values[start:stop]
        found |= {int(start + np.argmin(stretch)), int(start + np.argmax(stretch))}
    return np.array(sorted(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """Whose bytes change, at which place of the history, and by how much: arrays of one length."""

    owners: NDArray[np.int64]
    places: NDArray[np.int64]
    amounts: NDArray[np.int64]


def changes_of(owners: Sequence[int], places: Sequence[int], amounts: Sequence[int]) -> Changes:
    """The same, from lists."""
    return Changes(
        owners=np.array(owners, dtype=np.int64),
        places=np.array(places, dtype=np.int64),
        amounts=np.array(amounts, dtype=np.int64),
    )


def sums_at(places: NDArray[np.int64], changes: Iterable[Changes], num_owners: int) -> NDArray[np.float64]:
    """What each owner has after each of these places, which are in order, shape [owners, places]."""
    width = len(places) + 1  # a change behind the last place is seen at none
    total = np.zeros(num_owners * width)
    for one in changes:
        seen_at = one.owners * width + np.searchsorted(places, one.places)
        total += np.bincount(seen_at, weights=one.amounts, minlength=num_owners * width)
    sums: NDArray[np.float64] = np.cumsum(total.reshape(num_owners, width), axis=1)[:, :-1]
    return sums
