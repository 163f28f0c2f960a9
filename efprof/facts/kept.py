"""One thing that kept more at a later count than at an earlier one, and what shows it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from efprof.artifacts.holders import Change
from efprof.facts.counted_sizes import Rate, Size, Verdict
from efprof.model import Series, SeriesLine, Table

Kind = Literal["graphs", "tensors", "objects"]

LEAST_RATE: Final[dict[Kind, float]] = {"graphs": 512.0, "tensors": 8192.0, "objects": 1024.0}
"""Bytes per step: less is no leak to speak of. A loss with its graph takes a kilobyte, and no sound program keeps one
each step; of detached scalars 8 KiB are less than 1 GiB in 100,000 steps."""
LARGER_STORAGE: Final = 0.5
"""Of the storages, by the tensors that keep them: less is worth a copy."""
MOST_SHOWN: Final = 5
"""Curves and rows: more are not told from each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A holder, or a container of what is no tensor, that held more at a later count than at an earlier one.

    `changes` are the lines that were seen to change it; `unseen` says why none was. `against` says why it is no leak,
    or why nobody can tell. `aliases` are other paths to the same memory. `path` is None where nobody knows a name for
    it; `name` is as the program spells it; `entry` as a count tells it. Of the `rate`, `tensor_rate` bytes per step are
    the tensors' storages and `value_rate` what the tensors take of them.
    """

    path: str | None
    name: str
    scope: str | None
    owner: str | None
    file: str | None
    type: str
    kind: Kind
    sizes: tuple[Size, ...]
    rate: Rate
    verdict: Verdict
    against: str
    changes: tuple[Change, ...] = ()
    unseen: str = ""
    aliases: tuple[str, ...] = ()
    tensors_added: int = 0
    tensor_rate: float = 0.0
    value_rate: float = 0.0
    entry: tuple[str, ...] = ()

    @property
    def fed(self) -> tuple[Change, ...]:
        """The lines that were seen to give it more, the most first."""
        return tuple(change for change in self.changes if change.how != "shrank")

    @property
    def emptied(self) -> tuple[Change, ...]:
        """Those that were seen to take out."""
        return tuple(change for change in self.changes if change.how == "shrank")

    @property
    def site(self) -> str | None:
        """The line that feeds it, the one seen most often."""
        return self.fed[0].site if self.fed else None

    @property
    def entries_added(self) -> int:
        """From the first count to the last."""
        return self.sizes[-1].length - self.sizes[0].length

    @property
    def num_steps(self) -> int:
        """Between the first count and the last."""
        return max(1, self.sizes[-1].step - self.sizes[0].step)

    @property
    def is_view(self) -> bool:
        """Whether its tensors are small parts of the storages that they keep."""
        return self.value_rate < LARGER_STORAGE * self.tensor_rate

    @property
    def kept_rate(self) -> float:
        """What a copy of its tensors without graphs goes on keeping, bytes per step."""
        return min(self.value_rate, self.tensor_rate)

    @property
    def is_large(self) -> bool:
        """Whether it grows fast enough to matter."""
        rate = self.rate.high if self.verdict == "bounded" else self.rate.slope
        return rate >= LEAST_RATE[self.kind]


def counted_series(kept: Sequence[Kept]) -> Series:
    """What each had at every count."""
    return Series(
        title="What each holder has" if len(kept) > 1 else f"What {kept[0].path or kept[0].name} has",
        x_label="step",
        x_unit="count",
        y_label="held",
        y_unit="bytes",
        lines=tuple(
            SeriesLine(
                label=one.path or one.name,
                x=tuple(float(size.step) for size in one.sizes),
                y=tuple(float(size.num_bytes) for size in one.sizes),
                is_highlighted=place == 0,
            )
            for place, one in enumerate(kept[:MOST_SHOWN])
        ),
    )


def line_table(kept: Sequence[Kept]) -> tuple[Table, ...]:
    """The lines that were seen to change it; none where lines were not watched."""
    rows = [
        (one.path or one.name, change.site.rpartition(":")[0], _how(change.how, change.is_within_call), change.times,
         change.entries)
        for one in kept
        for change in (*one.fed, *one.emptied)
    ]  # fmt: skip
    if not rows:
        return ()
    columns = ("what", "line", "how", "times seen", "entries")
    return (Table(title="Lines that were seen to change it", columns=columns, units=("",) * 5, rows=tuple(rows)),)


def _how(how: str, is_within_call: bool) -> str:
    return f"{how}, within a call of a library" if is_within_call else how
