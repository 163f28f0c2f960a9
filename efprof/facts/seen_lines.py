"""The lines that were seen to change what was watched: a holder by its name, a container by its number."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from efprof.artifacts.holders import Change, Container, Count, Counted, Watch, Watched

Name = tuple[str | None, str | None, str | None]
"""Scope, path and file."""


class SeenLines:
    """The lines that were seen to change things, by name and by number."""

    def __init__(self, watches: Sequence[Watch], counts: Sequence[Count], *, is_watched: bool) -> None:
        self._watched = [one for watch in watches for one in watch.watched]
        self._why_not = next((watch.why_not for watch in watches if watch.why_not), None)
        self._has_steps = any(watch.why_not is None and watch.last_step >= watch.first_step for watch in watches)
        self.is_watched = is_watched
        self._numbers: dict[Name, set[int]] = {}
        for count in counts:
            things: list[Counted | Container] = [*count.holders, *count.containers]
            for one in things:
                if one.number is not None and one.path is not None:
                    self._numbers.setdefault((one.scope, one.path, one.file), set()).add(one.number)

    def of_name(self, name: Name) -> list[Change]:
        """Those of a holder, and of the containers that are or lie in it."""
        numbers = self._numbers.get(name, set())
        return _together(
            one for one in self._watched if (one.scope, one.path, one.file) == name or one.number in numbers
        )

    def of_number(self, number: int) -> list[Change]:
        """Those of one container."""
        return _together(one for one in self._watched if one.number == number)

    def why_unseen(self) -> str:
        """Of something whose lines nobody saw."""
        if not self.is_watched:
            return "lines were not observed when this run was recorded"
        if not self._has_steps:
            return self._why_not or "there was no time to watch its lines"
        return "no line was seen to change it in the steps that were watched"


def _together(watched: Iterator[Watched]) -> list[Change]:
    """Changes of the same line added up, those seen most often first."""
    changes = sorted((change for one in watched for change in one.changes), key=lambda one: (one.site, one.how))
    found = []
    for _, group in groupby(changes, key=lambda one: (one.site, one.how)):
        same = list(group)
        first = same[0]
        times, entries = sum(one.times for one in same), sum(one.entries for one in same)
        found.append(Change(site=first.site, how=first.how, times=times, entries=entries,
                            is_within_call=first.is_within_call, candidates=first.candidates))  # fmt: skip
    return sorted(found, key=lambda one: (-one.entries, -one.times))
