"""How many bytes each of the user's lines has over a device's recorded history, and how much is reserved for all."""

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from efprof.artifacts.snapshot import GROWTH, RELEASE, Frames
from efprof.facts.allocator.history import History
from efprof.facts.peak.window_memory import drawn_instants, sums_at
from efprof.facts.source.sources import place_of
from efprof.model import frozen_dataclass

MAX_LINES = 6
"""More could not be told apart."""
NO_LINE = "no line of yours (a backward pass runs without Python)"
BEFORE_IT = "in use before the recording began"
OTHER_LINES = "other lines"
MIN_SHARE = 1 / 1000
"""Of what all have: less would be thinner than a pixel."""

NO_OWNER, RESERVED = 0, 1
"""Among the owners of bytes: who is not known, and the allocator, which has what is reserved. Then come the lines."""

Curve = tuple[str, tuple[float, ...]]
"""Whose, and bytes at each drawn instant."""


@frozen_dataclass
class DeviceLines:
    """`num_events[i]` is how many events came before the instant i. Curves that are zero throughout are left out."""

    num_events: tuple[float, ...]
    curves: tuple[Curve, ...]
    """What tensors asked for, in the order in which they are stacked."""
    reserved: tuple[float, ...]


def label_of(site: str | None) -> str:
    """Of what a device's memory is in use for: a line, or why there is none."""
    return NO_LINE if site is None else place_of(site) if site else BEFORE_IT


def lines_over_time(history: History, site_of: Callable[[Frames], str | None], shown: Sequence[int]) -> DeviceLines:
    """The lines that have most when tensors do, all others as one, at few instants; those of `shown` are among them.

    Lines are named without their folders, as far as that leaves them different.
    """
    names, (owners, at, amounts) = _changes(history, site_of)
    alive = np.cumsum(np.where(owners == RESERVED, 0, amounts))[-len(history.entries) :]
    places = np.unique(np.array([-1, *drawn_instants(alive, 0, len(alive)), *shown]))
    is_so_far = at <= int(np.argmax(alive))
    sizes = np.bincount(owners[is_so_far], weights=amounts[is_so_far], minlength=len(names))
    least = max(1.0, MIN_SHARE * (sizes.sum() - sizes[RESERVED]))
    by_size = (int(owner) for owner in np.argsort(-sizes, kind="stable") if owner > RESERVED)
    largest = [owner for owner in by_size if sizes[owner] >= least][:MAX_LINES]
    rows = np.full(len(names), len(largest) + 2)
    rows[[NO_OWNER, RESERVED, *largest]] = range(len(largest) + 2)
    by_row = np.stack([rows[owners], at, amounts])
    nobody, reserved, *curves = np.maximum(sums_at(places, by_row, len(largest) + 3), 0)
    lines = [names[line] for line in largest]
    short = [re.split(r"[/\\]", line)[-1] for line in lines]
    different = [name if short.count(name) == 1 else line for name, line in zip(short, lines, strict=True)]
    labels = [NO_LINE, *different, OTHER_LINES]
    return DeviceLines(
        num_events=tuple(float(place + 1) for place in places),
        curves=tuple(
            (label, tuple(map(float, curve)))
            for label, curve in zip(labels, [nobody, *curves], strict=True)
            if curve.any()
        ),
        reserved=tuple(map(float, reserved)),
    )


def _changes(history: History, site_of: Callable[[Frames], str | None]) -> tuple[list[str], NDArray[np.int64]]:
    """The names of all owners; and changes: what was there before the first entry, then one for each entry."""
    names, owner_at = ["", ""], dict[int, int]()
    number_of: dict[str | None, int] = {None: NO_OWNER}

    def owner_of(frames: Frames) -> int:
        site = site_of(frames)
        place = None if site is None else label_of(site)
        if place not in number_of:
            number_of[place] = len(names)
            names.append(place or "")
        return number_of[place]

    owners, amounts = [RESERVED] * len(history.extents), [extent.num_bytes for extent in history.extents]
    for block in history.live:
        owner_at[block.address] = owner_of(block.frames)
        owners.append(owner_at[block.address])
        amounts.append(block.requested)
    num_before = len(owners)
    for entry in history.entries:
        owner, amount = RESERVED, entry.size
        if entry.action == "alloc":
            owner = owner_at[entry.addr] = owner_of(entry.frames)
        elif entry.action == "free_completed":
            owner, amount = owner_at.pop(entry.addr, NO_OWNER), -amount
        elif entry.action not in GROWTH:
            amount = -amount if entry.action in RELEASE else 0
        owners.append(owner)
        amounts.append(amount)
    return names, np.array([owners, [*[-1] * num_before, *range(len(history.entries))], amounts], dtype=np.int64)
