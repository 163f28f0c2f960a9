"""The evaluations of a run: which lines make them, and what their graphs add to the peak."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Self

from efprof.artifacts.readings import EvaluationRecord, read_evaluations
from efprof.facts.run.run import Run
from efprof.facts.source.loops import loop_around
from efprof.facts.source.sources import Sources, split_site
from efprof.model import SourceLine, frozen_dataclass


@frozen_dataclass
class NeedlessGraphs:
    """What the evaluations at one line build; `loop` is the first line of the loop around it, None where none is seen.

    `graph_bytes` is what one forward pass adds beside its output, `num_alive` how many such graphs there were at a
    time. `saved_bytes` is what the run's peak, `peak_bytes`, would be lower by.
    """

    blame: SourceLine
    loop: SourceLine | None
    num_evaluations: int
    num_forwards: int
    total_ms: float
    graph_bytes: int
    num_alive: int
    saved_bytes: int
    peak_bytes: int

    @property
    def is_kept(self) -> bool:
        """Whether more graphs than those of two forward passes, of which one replaces the other, were there."""
        return self.num_alive > 2


@frozen_dataclass
class Evaluations:
    """All but rollouts; `graphs` of the lines whose forward passes build some."""

    num_evaluations: int
    num_forwards: int
    graphs: tuple[NeedlessGraphs, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Read evaluations.jsonl; an older one tells of no graphs."""
        records = [one for one in read_evaluations(run.rank_folder) if not one.is_rollout]
        by_line = defaultdict[str, list[EvaluationRecord]](list)
        for record in records:
            if record.graph_bytes:
                by_line[place_in_loop(run, record)[0]].append(record)
        return cls(
            num_evaluations=len(records),
            num_forwards=sum(one.num_batches for one in records),
            graphs=tuple(_graphs(run, every) for every in by_line.values()),
        )


def place_in_loop(run: Run, record: EvaluationRecord) -> tuple[str, str | None]:
    """Of the lines that led to the module, the innermost that a loop repeats, and that loop's first line."""
    sources = run.get(Sources)
    for site in record.callers:
        file, line, function = split_site(site)
        found = loop_around(sources.tree(file), line)
        if found is not None:
            return site, f"{file}:{found.line}:{function}"
    return record.site or "?:0:?", None


def _graphs(run: Run, records: Sequence[EvaluationRecord]) -> NeedlessGraphs:
    most = max(records, key=lambda one: one.peak_bytes)
    site, loop = place_in_loop(run, most)
    sources = run.get(Sources)
    plain = (one for one in run.steps if not one.has_pause)
    trained = max((each.allocated_bytes for one in plain for each in one.memory), default=0)
    graph_bytes = most.graph_bytes or 0
    peak = max(trained, most.peak_bytes)
    without = max(trained, most.peak_bytes - most.num_alive * graph_bytes)
    return NeedlessGraphs(
        blame=sources.line(site),
        loop=None if loop is None else sources.line(loop),
        num_evaluations=len(records),
        num_forwards=sum(one.num_batches for one in records),
        total_ms=sum(one.total_us for one in records) / 1000,
        graph_bytes=graph_bytes,
        num_alive=most.num_alive,
        saved_bytes=peak - without,
        peak_bytes=peak,
    )
