"""Which source line called the operation behind an autograd node, found in a profiler window.

A node is known by its sequence number less the one at the start of its step's forward pass; the same offset in a
step that a profiler window recorded is the same operation, as long as every step runs the same code.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from efprof.artifacts.steps import StepRecord, read_steps
from efprof.artifacts.trace import Trace, TraceEvent, read_trace, trace_paths
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.facts.syntax import MODULE, placed_nodes

OPERATORS: dict[str, type[ast.operator]] = {
    "div": ast.Div, "pow": ast.Pow, "mul": ast.Mult, "add": ast.Add, "sub": ast.Sub, "mm": ast.MatMult,
    "bmm": ast.MatMult, "remainder": ast.Mod, "floordivide": ast.FloorDiv,
}  # fmt: skip
"""Operations that the source may spell with an operator: no call is recorded for it, only the function around it."""
FRAME = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)")
"""How the profiler names a call of Python code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardOperation:
    """One operation of a recorded forward pass; `sites` are the user's lines it can have come from."""

    name: str
    offset: int
    sites: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationLines:
    """The forward operations of every step that a profiler window recorded."""

    operations: tuple[ForwardOperation, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Read all traces; raises NotRecorded where there is none."""
        records = [record for record in read_steps(run.rank_folder)[0] if record.sequence is not None]
        sources = run.get(Sources)
        traces = [read_trace(path) for path in trace_paths(run.rank_folder)]
        return cls(operations=tuple(found for trace in traces for found in _operations(trace, records, sources)))

    def sites_of(self, node: str, offset: int) -> tuple[str, ...]:
        """The lines that can have made the node, one where it is sure, none where no operation fits."""
        operation = operation_of(node)
        fitting = [found for found in self.operations if plain(found.name) == operation and found.sites]
        exact = [found for found in fitting if found.offset == offset]
        if exact:
            return _together(exact)
        if len(every := _together(fitting)) == 1:
            return every
        nearest = min((abs(found.offset - offset) for found in fitting), default=0)
        first = _together([found for found in fitting if abs(found.offset - offset) == nearest])
        return (*first, *(site for site in every if site not in first))


def operation_of(node: str) -> str:
    """`logsoftmax` for `LogSoftmaxBackward0`."""
    return re.sub(r"Backward\d*$", "", node).lower()


def plain(name: str) -> str:
    """`logsoftmax` for `aten::_log_softmax`: an operation's name as nodes spell it."""
    return name.removeprefix("aten::").replace("_", "")


def _together(operations: list[ForwardOperation]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(site for operation in operations for site in operation.sites))


def _operations(trace: Trace, records: list[StepRecord], sources: Sources) -> Iterator[ForwardOperation]:
    """Every forward operation that makes a node, with its line; one pass over the events."""
    bounds = [(record.started_ns, record.started_ns + round(record.total_us * 1000), record) for record in records]
    calls: dict[int | str, list[TraceEvent]] = {}
    for event in trace.events:
        around = calls.setdefault(event.thread, [])
        while around and around[-1].end_ns <= event.start_ns:
            around.pop()
        if event.category == "python_function":
            around.append(event)
        elif _makes_node(event):
            record = next((record for start, end, record in bounds if start <= event.start_ns < end), None)
            sequence = event.arguments.sequence_number
            if record is not None and record.sequence is not None and sequence is not None:
                yield ForwardOperation(
                    name=event.name,
                    offset=sequence - record.sequence,
                    sites=_sites_around(event, around, sources),
                )


def _makes_node(event: TraceEvent) -> bool:
    arguments = event.arguments
    is_forward = not arguments.forward_thread and event.name.startswith("aten::")
    return event.category == "cpu_op" and is_forward and arguments.sequence_number is not None


def _sites_around(event: TraceEvent, around: list[TraceEvent], sources: Sources) -> tuple[str, ...]:
    """The line of the innermost call from user code; of an operator, its lines in the innermost function."""
    if not around:
        return ()
    places = _user_function(around[-1], sources)
    if places is not None:
        operator = OPERATORS.get(plain(event.name).lower())
        return tuple(dict.fromkeys(_site(place) for place in places if operator and _is_operator(place.node, operator)))
    sites = (call.arguments.call_site for call in reversed(around))
    return next(((site,) for site in sites if site is not None and sources.is_user_code(site)), ())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    file: str
    function: str
    node: ast.AST


def _user_function(call: TraceEvent, sources: Sources) -> list[_Place] | None:
    """What the user's function contains that this event is a call of; None where it is a call of anything else.

    No call lies between such a function and the operation: its own code has an operator for it.
    """
    frame = FRAME.fullmatch(call.name)
    if frame is None:
        return None
    for file in sources.files:
        if file.endswith(frame["file"]) or frame["file"].endswith(file):
            name = _qualified_name(sources, file, int(frame["line"]), frame["function"])
            tree = sources.tree(file)
            if tree is not None and name is not None:
                inside = (placed for placed in placed_nodes(tree) if placed.function == name)
                return [_Place(file=file, function=name, node=placed.node) for placed in inside]
    return None


def _qualified_name(sources: Sources, file: str, line: int, function: str) -> str | None:
    """The function of that name whose definition, decorators included, begins on that line."""
    tree = sources.tree(file)
    if function == MODULE or tree is None:
        return MODULE
    for placed in placed_nodes(tree):
        match placed.node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) as node if name == function:
                if line == min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]):
                    return placed.qualified_name(function)
    return None


def _is_operator(node: ast.AST, operator: type[ast.operator]) -> bool:
    return isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, operator)


def _site(place: _Place) -> str:
    assert isinstance(place.node, ast.expr | ast.stmt)
    return f"{place.file}:{place.node.lineno}:{place.function}"
