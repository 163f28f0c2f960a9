"""How many bytes each of the user's lines has over a device's recorded history, and how much is reserved for all."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from efprof.artifacts.snapshot import Frames
from efprof.facts.allocator.history import History
from efprof.facts.drawn_instants import Changes, changes_of, drawn_instants, sums_at
from efprof.facts.sources import place_of

MOST_LINES: Final = 6
"""More could not be told apart."""
NO_LINE: Final = "no line of yours is known"
OTHER_LINES: Final = "other lines"
LEAST_SHARE: Final = 1 / 1000
"""Of what all have: less would be thinner than a pixel."""
GROWTH: Final = frozenset({"segment_alloc", "segment_map"})
SHRINKAGE: Final = frozenset({"segment_free", "segment_unmap"})

NOBODY, RESERVED = 0, 1
"""Among the owners of bytes: who is not known, and the allocator, which has what is reserved. Then come the lines."""

Curve = tuple[str, tuple[float, ...]]
"""Whose, and bytes at each drawn instant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceLines:
    """`num_events[i]` is how many events came before the instant i. Curves that are zero throughout are left out."""

    num_events: tuple[float, ...]
    curves: tuple[Curve, ...]
    """What tensors asked for, in the order in which they are stacked."""
    reserved: tuple[float, ...]


def lines_over_time(history: History, site_of: Callable[[Frames], str | None], shown: Sequence[int]) -> DeviceLines:
    """The lines that have most when tensors have most, and all others as one, at few enough instants to draw.

    The entries of the indices `shown` are among them.
    """
    walk = _Walk(history, site_of)
    changes = (walk.before(), walk.entries())
    alive = np.cumsum(np.where(changes[-1].owners == RESERVED, 0, changes[-1].amounts))
    places = np.unique(np.array([-1, *drawn_instants(alive, 0, len(alive)), *shown]))
    largest = _largest_at(changes, int(np.argmax(alive)), len(walk.names))
    rows = np.full(len(walk.names), len(largest) + 2)
    rows[[NOBODY, RESERVED, *largest]] = range(len(largest) + 2)
    by_row = (replace(one, owners=rows[one.owners]) for one in changes)
    nobody, reserved, *curves = np.maximum(sums_at(places, by_row, len(largest) + 3), 0)
    labels = [NO_LINE, *_short_names([walk.names[line] for line in largest]), OTHER_LINES]
    return DeviceLines(
        num_events=tuple(float(place + 1) for place in places),
        curves=tuple(
            (label, tuple(map(float, curve)))
            for label, curve in zip(labels, [nobody, *curves], strict=True)
            if curve.any()
        ),
        reserved=tuple(map(float, reserved)),
    )


def _largest_at(changes: tuple[Changes, ...], place: int, num_owners: int) -> list[int]:
    """The lines that have most after that entry, most first."""
    sizes = np.zeros(num_owners)
    for one in changes:
        is_so_far = one.places <= place
        sizes += np.bincount(one.owners[is_so_far], weights=one.amounts[is_so_far], minlength=num_owners)
    least = max(1.0, LEAST_SHARE * (sizes.sum() - sizes[RESERVED]))
    by_size = (int(owner) for owner in np.argsort(-sizes, kind="stable") if owner > RESERVED)
    return [owner for owner in by_size if sizes[owner] >= least][:MOST_LINES]


def _short_names(lines: list[str]) -> list[str]:
    """Without their folders, as far as that leaves them different."""
    names = [re.split(r"[/\\]", line)[-1] for line in lines]
    return [name if names.count(name) == 1 else line for line, name in zip(lines, names, strict=True)]


class _Walk:
    """Through a history, from the blocks that were there before it to its last entry; `names` are those of owners."""

    def __init__(self, history: History, site_of: Callable[[Frames], str | None]) -> None:
        self.names = ["", ""]
        self._history, self._site_of = history, site_of
        self._by_place: dict[str, int] = {}
        self._by_site: dict[str | None, int] = {None: NOBODY}
        self._owner_at: dict[int, int] = {}

    def before(self) -> Changes:
        """What was there at the first entry."""
        owners = [RESERVED] * len(self._history.extents)
        amounts = [extent.num_bytes for extent in self._history.extents]
        for block in self._history.live:
            owner = self._owner_at[block.address] = self._owner(block.frames)
            owners.append(owner)
            amounts.append(block.requested)
        return changes_of(owners, [-1] * len(owners), amounts)

    def entries(self) -> Changes:
        """One for each entry, of 0 bytes where it changes nothing."""
        owners, amounts = [], []
        for entry in self._history.entries:
            action, amount = entry.action, entry.size
            if action == "alloc":
                owner = self._owner_at[entry.addr] = self._owner(entry.frames)
            elif action == "free_completed":
                owner, amount = self._owner_at.pop(entry.addr, NOBODY), -amount
            elif action in GROWTH:
                owner = RESERVED
            else:
                owner, amount = RESERVED, -amount if action in SHRINKAGE else 0
            owners.append(owner)
            amounts.append(amount)
        return changes_of(owners, range(len(owners)), amounts)

    def _owner(self, frames: Frames) -> int:
        site = self._site_of(frames)
        if site not in self._by_site:
            assert site is not None, "nobody is an owner from the start"
            place = place_of(site)
            if place not in self._by_place:
                self._by_place[place] = len(self.names)
                self.names.append(place)
            self._by_site[site] = self._by_place[place]
        return self._by_site[site]
