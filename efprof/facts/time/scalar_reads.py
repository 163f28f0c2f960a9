"""Which lines of the user's code copied tensor values to Python, how often, and how long they took; the evidence."""

import ast
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources, mentions, place_of, placed_nodes
from efprof.facts.steps.step_times import StepTimes, median_interval
from efprof.model import Gain, Narrative, Numbers, SourceLine, Table, called_name
from efprof.units import format_ms, format_share, format_value

MAKERS = frozenset({"arange", "rand", "randint", "randn", "randperm", "tensor"})
"""Functions of torch that make a tensor on the CPU unless they are told a device, or given a tensor."""
ELSEWHERE = re.compile(r"\bset_default_(device|tensor_type)\b|^\s*(async )?with (?!torch\.cuda\.)(\w+\.)*\w*device\b")
"""Where a program says so, a tensor made without a device may lie anywhere."""
PLAIN_NUMBERS = frozenset({"int", "len", "max", "min", "range", "round"})
"""What these give is no tensor; what `int` reads is looked at by itself."""

AFTER_COST = 0.001
"""The share of the step that reading may cost after the fix."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadingLine:
    """One line; `counts` and `ms` have one entry per steady step, `calls` (`item`, `bool`) the most frequent first."""

    blame: SourceLine
    calls: tuple[str, ...]
    counts: tuple[int, ...]
    ms: tuple[float, ...]
    num_micro_batches: float = 1.0
    """Backward passes per step."""
    is_cut_on_host: bool = False
    """Whether the line reads only to cut by numbers that are made on the CPU, which no GPU makes wait."""

    @property
    def count_per_micro_batch(self) -> float:
        """Reads for each backward pass: one of each is logging, several are an inner loop."""
        return self.mean_count / max(1.0, self.num_micro_batches)

    @property
    def mean_count(self) -> float:
        """Reads per step."""
        return sum(self.counts) / len(self.counts)

    @property
    def median_count(self) -> float:
        """Reads per step; unlike the mean, not moved by a last step that ended before the next one's data was read."""
        return statistics.median(self.counts)

    @property
    def share_of_steps(self) -> float:
        """The share of steps in which the line read at all."""
        return sum(1 for count in self.counts if count) / len(self.counts)

    @property
    def typical_ms(self) -> float:
        """Milliseconds per step inside the reading calls: what removing all of them saves at most.

        The median of the steps that read, so that a step in which the machine was busy does not count.
        """
        return self.share_of_steps * statistics.median(self.ms_where_read)

    @property
    def interval_ms(self) -> tuple[float, float]:
        """The 95 % interval of `typical_ms`."""
        low, high = median_interval(self.ms_where_read)
        return self.share_of_steps * low, self.share_of_steps * high

    @property
    def times(self) -> str:
        """`8 times per step`."""
        if self.median_count < 1:
            return "in half of the steps"
        return f"{format_value(self.median_count, 'count')} time{'' if self.median_count == 1 else 's'} per step"

    @property
    def ms_where_read(self) -> tuple[float, ...]:
        """The milliseconds of the steps in which the line read."""
        return tuple(ms for ms, count in zip(self.ms, self.counts, strict=True) if count)


def cost_phrase(cost_ms: float, step_ms: float) -> str:
    """`1.55 ms per step (10 % of it)`."""
    share = cost_ms / step_ms
    of_step = format_share(share) if share >= AFTER_COST else f"under {format_share(AFTER_COST)}"
    return f"{format_ms(cost_ms)} per step ({of_step} of it)"


def scalar_reads(run: Run) -> list[ReadingLine]:
    """Every line that read in a steady step, the most expensive first; raises ThinEvidence without such a step."""
    steady = run.get(StepTimes).at_least(1)
    sources = run.get(Sources)
    sites: dict[str, str] = {}
    counts: dict[str, list[int]] = defaultdict(lambda: [0] * len(steady))
    ms: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(steady))
    calls: dict[str, Counter[str]] = defaultdict(Counter)
    for index, time in enumerate(steady):
        for read in time.record.reads:
            place = place_of(read.site)
            sites.setdefault(place, read.site)
            counts[place][index] += read.count
            ms[place][index] += read.us / 1000
            calls[place][read.call] += read.count
    num_micro_batches = statistics.median(time.record.micro_batches for time in steady)
    lines = [
        ReadingLine(
            blame=sources.line(site),
            calls=tuple(call for call, _ in calls[place].most_common()),
            counts=tuple(counts[place]),
            ms=tuple(ms[place]),
            num_micro_batches=num_micro_batches,
            is_cut_on_host=set(calls[place]) == {"int"} and is_cut_on_host(sources.line(site), sources),
        )
        for place, site in sites.items()
    ]
    return sorted(lines, key=lambda line: (-line.typical_ms, line.blame.key))


def read_numbers(line: ReadingLine, share: float) -> Numbers:
    """How often and how long the line reads."""
    return Numbers.of(
        f"Calls: {', '.join(line.calls)}",
        ("reads per step", line.median_count, "count"),
        ("time inside them per step", line.typical_ms, "ms", line.interval_ms),
        ("share of the median step", share * 100, "percent"),
        ("steps that read", line.share_of_steps * 100, "percent"),
    )


def reading_message(lines: Sequence[ReadingLine], step_ms: float, *, is_gpu: bool) -> str:
    """What the lines cost here, and on a CPU what they would do on a GPU."""
    first, *others = lines
    cost = cost_phrase(sum(line.typical_ms for line in lines), step_ms)
    if is_gpu:
        return f"A tensor's value is read {first.times}, which waits for the GPU for {cost}."
    also = f"{len(others)} more lines" if len(others) > 1 else "".join(str(line.blame) for line in others)
    where = f", and of others at {also}" if others else ""
    here = f"A tensor's value is read {first.times}{where}; on this CPU run that costs {cost}."
    return (
        f"{here} On a GPU the host waits at {'these lines' if others else 'this line'} for every kernel queued before."
    )


def lines_table(lines: Sequence[ReadingLine]) -> Table:
    """Each line, how often it reads, and what that costs here."""
    rows = tuple((f"`{one.blame}`", f"`{one.blame.text}`", one.median_count, one.typical_ms) for one in lines)
    columns = ("line", "code", "reads per step", "time per step")
    return Table(title="All lines that read", columns=columns, units=("", "", "count", "ms"), rows=rows)


def gain_without(*lines: ReadingLine, is_gpu: bool) -> Gain:
    """What leaving their reads out saves."""
    low, high = (sum(line.interval_ms[end] for line in lines) for end in (0, 1))
    return Gain(
        basis="measured bound",
        explanation="the time measured inside the reading calls, all of which the fix removes"
        + ("; a later read may wait in their place" if is_gpu else ""),
        step_ms=sum(line.typical_ms for line in lines),
        step_ms_interval=(0.0 if is_gpu else low, high),
    )


def what_reading_means(line: ReadingLine, *, is_gpu: bool) -> Narrative:
    """What it means, how we know, when it is wrong."""
    here = (
        "Each call was timed where Python made it: the time holds the wait for the GPU's queue and the copy."
        if is_gpu
        else "Each call was timed where Python made it. On the CPU nothing is queued, so this is only the cost of the "
        "calls; how long they would wait on a GPU cannot be told from this run."
    )
    return Narrative.of(
        "Python needs the number, so it stops until the device has computed it; it can queue no work meanwhile.",
        f"{here} {len(line.counts)} steps after warm-up and outside profiler windows were looked at.",
        "It is harmless where the program must decide by the value before it can go on, and nothing else could be "
        "queued meanwhile.",
    )


def is_cut_on_host(line: SourceLine, sources: Sources) -> bool:
    """Whether every number that a slice of `line` is bounded by comes from a tensor made on the CPU.

    As in `torch.stack([data[i : i + length] for i in starts])` below `starts = torch.randint(...)`: many trainers
    cut their batches so, and what lies on the CPU is read without waiting for a GPU. False where any other call of
    the function makes one of these names: what it gives may lie on the device; and where the line reads another
    tensor by `int`. Parameters and attributes beside such names, as `length` here, are taken for plain
    numbers: the text does not tell.
    """
    tree = sources.tree(line.file)
    if not tree.body or any(ELSEWHERE.search(text) for lines in sources.files.values() for text in lines):
        return False
    nested = f"{line.function}.<locals>."
    inside = [one.node for one in placed_nodes(tree) if f"{one.function}.<locals>.".startswith(nested)]
    here = [
        node
        for node in inside
        if isinstance(node, ast.stmt) and node.lineno <= line.line <= (node.end_lineno or node.lineno)
    ]
    if not here:
        return False
    nodes = list(ast.walk(max(here, key=lambda node: node.lineno)))
    bounds = [bound for node in nodes if isinstance(node, ast.Slice) for bound in ast.iter_child_nodes(node)]
    reads = [node.args for node in nodes if isinstance(node, ast.Call) and called_name(node) == "int"]
    return _are_made_on_host(bounds, inside) and all(_are_made_on_host(read, inside) for read in reads)


def _are_made_on_host(values: Sequence[ast.AST], inside: Sequence[ast.AST]) -> bool:
    """Whether the CPU made all that calls made of these expressions and the names in them, and anything is."""
    names = _names_in(values)
    drawn_from = [
        node.iter
        for node in inside
        if isinstance(node, ast.comprehension | ast.For) and any(mentions(node.target, name) for name in names)
    ]
    names |= _names_in(drawn_from)
    made = [
        node.value
        for node in inside
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if any(mentions(target, name) for name in names)
    ]
    calls = [call for value in (*values, *drawn_from, *made) for call in _outermost_calls(value)]
    return bool(calls) and all(map(_is_made_on_host, calls))


def _names_in(values: Sequence[ast.AST]) -> set[str]:
    return {node.id for value in values for node in ast.walk(value) if isinstance(node, ast.Name)}


def _outermost_calls(value: ast.AST) -> Iterator[ast.Call]:
    """But for those that give plain numbers."""
    if isinstance(value, ast.Call):
        if not (isinstance(value.func, ast.Name) and value.func.id in PLAIN_NUMBERS):
            yield value
    else:
        for child in ast.iter_child_nodes(value):
            yield from _outermost_calls(child)


def _is_made_on_host(call: ast.Call) -> bool:
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="tensor"), args=[given, *_]) if (
            not isinstance(given, ast.Constant | ast.List | ast.Tuple | ast.ListComp)
        ):
            return False  # what is copied from a tensor lies where that lies
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name), keywords=keywords):
            return name in MAKERS and not any(keyword.arg in (None, "device") for keyword in keywords)
    return False
