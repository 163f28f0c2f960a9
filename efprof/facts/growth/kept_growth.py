"""What the run keeps more of at every count: the holder, the lines seen to feed it, what speaks against a leak."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Self

from msgspec import structs

from efprof.artifacts.holders import Change, Container, Count, Counted, Watch, Watched, read_counts, read_watches
from efprof.facts.growth.kept import MIN_EMPTIED, RetainedTensors, Size, judged, rate_of
from efprof.facts.run.run import Run
from efprof.facts.run.run_limits import RunLimits
from efprof.model import NotRecorded, frozen_dataclass

GRAPH_NODE_BYTES = 420
"""What an autograd node itself takes once backward has freed what it saved: 404 to 438 bytes measured, torch 2.13."""
MAX_COUNTED_NODES = 20_000
"""Where recorders stopped counting a graph before they said so."""
MOST_GRAPHS = 0.1
"""Of the memory, that graphs may take within a limit of their holder's own; tensors may take all."""
MIN_STEPS_KEPT = 40
"""Of graphs that are let go again: fewer may be those that a meta-learner goes back through."""
MOST_SAVED = 0.005
"""Of its nodes' own memory, that a graph may have saved which backward has been through: 8 bytes a step where losses
are divided before they are summed. What is yet to go backward saves activations, 32 bytes a step of a tiny policy."""
SAME_MEMORY = 0.1
"""Holders whose growth differs by less than this share, and that got longer by as much, hold the same."""


Name = tuple[str | None, str | None, str | None]
"""Scope, path and file."""
Found = tuple[Size, Counted | None]
"""What a count found of a holder."""


class SeenLines:
    """The lines that were seen to change things, by name and by number."""

    def __init__(self, watches: Sequence[Watch], counts: Sequence[Count]) -> None:
        self._watched = [one for watch in watches for one in watch.watched]
        self._numbers = defaultdict[Name, set[int]](set)
        for count in counts:
            things: list[Counted | Container] = [*count.holders, *count.containers]
            for one in things:
                if one.number is not None and one.path is not None:
                    self._numbers[_name(one)].add(one.number)
        self.why_unseen = "no line was seen to change it in the steps that were watched"
        """Of something whose lines nobody saw."""
        if all(watch.why_not is not None for watch in watches):
            self.why_unseen = next((watch.why_not for watch in watches if watch.why_not), "its lines were not watched")

    def of(self, name: Name | None, number: int | None = None) -> list[Change]:
        """Those of a holder, and of the containers that are or lie in it; or of one container.

        Changes of the same line are added up, those seen most often come first.
        """
        numbers = {number} if name is None else self._numbers[name]
        alike: dict[tuple[str, str], list[Change]] = {}
        for one in self._watched:
            if _name(one) == name or one.number in numbers:
                for change in one.changes:
                    alike.setdefault((change.site, change.how), []).append(change)
        found = (
            structs.replace(same[0], times=sum(one.times for one in same), entries=sum(one.entries for one in same))
            for _, same in sorted(alike.items())
        )
        return sorted(found, key=lambda one: (-one.entries, -one.times))


@frozen_dataclass
class KeptGrowth:
    """What grew, most bytes first: of tensors and graphs, and of all else; by `num_counts` up to step `last_step`."""

    holders: tuple[RetainedTensors, ...] = ()
    containers: tuple[RetainedTensors, ...] = ()
    num_counts: int = 0
    last_step: int = 0

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where holders were not counted, or only once."""
        counts, watches = read_counts(run.rank_folder), read_watches(run.rank_folder)
        if len(counts) == 1:
            raise NotRecorded(f"holders were counted only once, after step {counts[0].step:,}; record a longer run.")
        seen = SeenLines(watches, counts)
        names = dict.fromkeys(_name(one) for count in counts for one in count.holders)
        plain = dict.fromkeys(one.number for count in counts for one in count.containers if not one.holds_tensors)
        limits = run.find(RunLimits)
        on_host = limits if limits and not limits.is_device else None
        holders = [one for name in names if (one := _holder(name, counts, seen, limits)) is not None]
        containers = [one for number in plain if (one := _container(number, counts, seen, on_host)) is not None]
        return cls(
            holders=tuple(_without_aliases(holders)),
            containers=tuple(sorted(containers, key=lambda one: -one.rate.slope)),
            num_counts=len(counts),
            last_step=counts[-1].step,
        )


def _name(one: Counted | Container | Watched) -> Name:
    return one.scope, one.path, one.file


def _holder(name: Name, counts: Sequence[Count], seen: SeenLines, limits: RunLimits | None) -> RetainedTensors | None:
    """None where no count found more than an earlier one."""
    found: Sequence[Found] = list(_counted(name, counts))
    sizes = [size for size, _ in found]
    if len(sizes) < 2 or not any(later.num_bytes > one.num_bytes for one, later in pairwise(sizes)):
        return None
    ends = _one_graph(found)
    last = next(counted for _, counted in reversed(ends or found) if counted is not None)
    kept = _kept(last, sizes, seen, seen.of(name), limits)
    if ends:
        found, rate = ends, rate_of([size for size, _ in ends])
        kept = replace(kept, verdict="leak", rate=rate, most_bytes=max(size.num_bytes for size in sizes))
    first = found[0][1] or structs.replace(last, tensors=0, tensor_bytes=0, value_bytes=0, graph_nodes=0)
    num_steps = max(1, found[-1][0].step - found[0][0].step)
    tensors_added = last.tensors - first.tensors
    tensor_bytes = max(0, last.tensor_bytes - first.tensor_bytes)
    has_more = last.graph_nodes > first.graph_nodes or tensors_added > 0  # counting nodes stops at a limit
    return replace(
        kept,
        name=_spelled(last),
        kind="graphs" if last.graph_nodes > 0 and has_more else "tensors",
        tensors_added=tensors_added,
        tensor_rate=tensor_bytes / num_steps,
        value_rate=min(max(0, last.value_bytes - first.value_bytes), tensor_bytes) / num_steps,
        entry=tuple(last.entry),
    )


def _one_graph(found: Sequence[Found]) -> tuple[Found, ...]:
    """The two counts farthest apart that met one graph, larger at the later one; empty where it is never let go.

    As of a sum that keeps it until an epoch ends. Of what backward has been through nodes alone are left: no sound
    program adds to such a graph for so many steps. It may well collect plain tensors, or losses yet to go backward.
    """
    is_let_go = any(later.num_bytes < (1 - MIN_EMPTIED) * size.num_bytes for (size, _), (later, _) in pairwise(found))
    pairs = [pair for pair in combinations(found, 2) if is_let_go and _is_added_to(*pair)]
    return max(pairs, key=lambda pair: pair[1][0].step - pair[0][0].step, default=())


def _is_added_to(one: Found, other: Found) -> bool:
    (size, first), (later, last) = one, other
    if not (first and last and first.graph_span and last.graph_span):
        return False
    is_same = last.graph_span[0] <= first.graph_span[1] and later.step - size.step >= MIN_STEPS_KEPT
    num_nodes, saved_bytes = last.graph_nodes - first.graph_nodes, last.graph_bytes - first.graph_bytes
    return is_same and num_nodes > 0 and saved_bytes <= MOST_SAVED * num_nodes * GRAPH_NODE_BYTES


def _kept(
    of: Counted | Container,
    sizes: Sequence[Size],
    seen: SeenLines,
    changes: Sequence[Change],
    limits: RunLimits | None,
) -> RetainedTensors:
    most, added = math.inf, sizes[-1].length - sizes[0].length
    if 0 < sizes[-1].length <= of.max_length and added > 0:  # by what its entries took so far
        most = of.max_length * (sizes[-1].num_bytes - sizes[0].num_bytes) / added
    room = limits.total_bytes if limits and limits.total_bytes else math.inf
    if isinstance(of, Counted) and of.graph_nodes:
        room *= MOST_GRAPHS
    verdict, against = judged(sizes, changes)
    if math.isfinite(most) and most <= room:
        verdict, against = "bounded", f"its maximum length is {of.max_length:,}"
    rate = rate_of(sizes)
    return RetainedTensors(
        path=of.path,
        name=of.path or of.type,
        scope=of.scope,
        owner=of.owner,
        file=of.file,
        type=of.type,
        kind="objects",
        sizes=tuple(sizes),
        rate=rate,
        verdict=verdict,
        against=against,
        fed=tuple(change for change in changes if change.how != "shrank"),
        emptied=tuple(change for change in changes if change.how == "shrank"),
        unseen=seen.why_unseen,
        seconds_left=limits.seconds_left(rate.slope) if limits else math.inf,
        most_bytes=most,
    )


def _counted(name: Name, counts: Sequence[Count]) -> Iterator[Found]:
    """What each count found of it; where it had no tensors it is missing, unless not all was written or reached.

    At the program's end less says nothing: a function had returned, or an object was dropped.
    """
    found = [next((one for one in count.holders if _name(one) == name), None) for count in counts]
    spans = [(count.step, one.graph_span) for count, one in zip(counts, found, strict=True) if one and one.graph_span]
    pairs = [(one, later) for (step, one), (later_step, later) in pairwise(spans) if later_step > step]
    # Nothing of its graph at one step was part of it at the next one counted: each has a size of its own.
    is_anew = bool(pairs) and all(later[0] > one[1] for one, later in pairs)
    before = 0
    for count, counted in zip(counts, found, strict=True):
        if counted is None:
            if not count.is_partial and count.moment != "end":
                yield Size(step=count.step, length=0, num_bytes=0), None
                before = 0
            continue
        if is_anew:
            counted = structs.replace(counted, graph_nodes=0, graph_bytes=0)
        num_bytes = counted.tensor_bytes + counted.graph_bytes + GRAPH_NODE_BYTES * counted.graph_nodes
        is_least = counted.is_cut or counted.graph_nodes >= MAX_COUNTED_NODES
        if num_bytes > before or not (is_least or (count.moment == "end" and num_bytes < before)):
            before = num_bytes
            yield Size(step=count.step, length=counted.length, num_bytes=num_bytes, is_least=is_least), counted


def _spelled(counted: Counted) -> str:
    """As the program spells it: `stats['train']['losses']` where the variable is `stats`; a cache by its function."""
    if counted.type == "lru_cache":
        return counted.owner
    whole = f"{counted.owner}.{counted.name}"
    return counted.name + counted.path.removeprefix(whole) if counted.path.startswith(f"{whole}[") else counted.name


def _container(
    number: int, counts: Sequence[Count], seen: SeenLines, limits: RunLimits | None
) -> RetainedTensors | None:
    """None of one that was made between two counts and is gone at the next: it was never seen to grow."""
    found = [(count, one) for count in counts for one in count.containers if one.number == number]
    entry_bytes = max(one.entry_bytes for _, one in found)
    first, last = found[0][1], found[-1][1]
    lengths = [(count.step, one.length) for count, one in found]
    if first.length_before:
        before = max((count.step for count in counts if count.step < lengths[0][0]), default=0)
        lengths.insert(0, (before, first.length_before))
    if found[-1][0].moment == "end" and len(lengths) > 1 and lengths[-1][1] < lengths[-2][1]:
        lengths.pop()
    if len(lengths) < 2:
        return None
    sizes = [Size(step=step, length=length, num_bytes=length * entry_bytes) for step, length in lengths]
    return _kept(last, sizes, seen, seen.of(None, number), limits)


def _without_aliases(holders: Sequence[RetainedTensors]) -> list[RetainedTensors]:
    """Most bytes first, what is reached by several paths once: by the container, else by what has least behind it.

    A loss that is bound anew reaches the whole graph of the state that it comes from, and something more.
    """
    kept: list[RetainedTensors] = []
    for one in sorted(holders, key=lambda one: (one.entries_added <= 0, not one.fed, one.sizes[-1].num_bytes)):
        same = next((place for place, other in enumerate(kept) if _is_same_memory(one, other)), None)
        if same is None:
            kept.append(one)
        elif one.path is not None:
            other = kept[same]
            kept[same] = replace(other, aliases=(*other.aliases, one.path))
    return sorted(kept, key=lambda one: -one.rate.slope)


def _is_same_memory(one: RetainedTensors, other: RetainedTensors) -> bool:
    is_view = one.entries_added <= 0 or (not one.fed and one.tensors_added == other.tensors_added)
    is_as_fast = abs(one.rate.slope - other.rate.slope) <= SAME_MEMORY * other.rate.slope
    return is_view and is_as_fast and (one.verdict, one.kind) == (other.verdict, other.kind)
