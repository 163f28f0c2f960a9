"""Which source line called the operation behind an autograd node, found in a profiler window.

A node is known by its sequence number less the one at the start of its step's forward pass; the same offset in a
step that a profiler window recorded is the same operation, as long as every step runs the same code.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from efprof.artifacts.steps import StepRecord, read_steps
from efprof.artifacts.trace.columns import ABSENT, Trace
from efprof.artifacts.trace.read import read_window, trace_paths
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources, placed_nodes, split_site

OPERATORS: dict[str, type[ast.operator]] = {
    "div": ast.Div, "pow": ast.Pow, "mul": ast.Mult, "add": ast.Add, "sub": ast.Sub, "mm": ast.MatMult,
    "bmm": ast.MatMult, "remainder": ast.Mod, "floordivide": ast.FloorDiv,
}  # fmt: skip
"""Operations that the source may spell with an operator: no call is recorded for it, only the function around it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardOperation:
    """One operation of a recorded forward pass; `sites` are the user's lines it can have come from."""

    name: str
    offset: int
    sites: tuple[str, ...]


def forward_operations(run: Run) -> list[ForwardOperation]:
    """Those of every step that a profiler window recorded; raises NotRecorded where there is no trace."""
    records = [record for record in read_steps(run.rank_folder)[0] if record.sequence is not None]
    traces = map(read_window, trace_paths(run.rank_folder))
    return [found for trace in traces for found in _operations(trace, records, run.get(Sources))]


def sites_of_node(operations: Sequence[ForwardOperation], node: str, offset: int) -> tuple[str, ...]:
    """The lines that can have made the node, one where it is sure, none where no operation fits."""
    operation = operation_of(node)
    fitting = [found for found in operations if plain(found.name) == operation and found.sites]
    exact = [found for found in fitting if found.offset == offset]
    return tuple(dict.fromkeys(site for found in exact or fitting for site in found.sites))


def operation_of(node: str) -> str:
    """`logsoftmax` for `LogSoftmaxBackward0`."""
    return re.sub(r"Backward\d*$", "", node).lower()


def plain(name: str) -> str:
    """`logsoftmax` for `aten::_log_softmax`: an operation's name as nodes spell it."""
    return name.removeprefix("aten::").replace("_", "")


def _operations(trace: Trace, records: list[StepRecord], sources: Sources) -> Iterator[ForwardOperation]:
    """Every forward operation that makes a node, with its line; one pass over the events."""
    bounds = [(record.started_ns, record.started_ns + round(record.total_us * 1000), record) for record in records]
    is_call, is_operation = trace.is_of("python_function"), trace.is_of("cpu_op")
    sequences, forward_threads = trace.argument("sequence"), trace.argument("forward_thread")
    calls: dict[int, list[int]] = {}
    for event in np.flatnonzero(is_call | is_operation).tolist():
        around, start_ns = calls.setdefault(int(trace.lane[event]), []), int(trace.start_ns[event])
        while around and trace.end_ns[around[-1]] <= start_ns:
            around.pop()
        sequence, name = int(sequences[event]), trace.text(event)
        if is_call[event]:
            around.append(event)
        elif sequence != ABSENT and name.startswith("aten::") and forward_threads[event] <= 0:
            record = next((record for start, end, record in bounds if start <= start_ns < end), None)
            if record is not None and record.sequence is not None:
                sites = _sites_around(name, around, trace, sources)
                yield ForwardOperation(name=name, offset=sequence - record.sequence, sites=sites)


def _sites_around(name: str, around: list[int], trace: Trace, sources: Sources) -> tuple[str, ...]:
    """The line of the innermost call from user code; of an operator, its lines in the innermost function.

    No call lies between the user's function and such an operation: its own code has an operator for it.
    """
    if not around:
        return ()
    for site in sources.sites_of_frame(trace.text(around[-1])):
        file, function = split_site(site)[0], sources.line(site).function
        operator = OPERATORS.get(plain(name).lower())
        own = (placed.node for placed in placed_nodes(sources.tree(file)) if placed.function == function)
        operations = [node for node in own if isinstance(node, ast.BinOp | ast.AugAssign)]
        lines = [node.lineno for node in operations if operator and isinstance(node.op, operator)]
        return tuple(f"{file}:{line}:{function}" for line in dict.fromkeys(lines))
    call_sites = trace.argument("call_site")
    sites = (trace.texts[call_sites[call]] for call in reversed(around) if call_sites[call] != ABSENT)
    return next(((site,) for site in sites if sources.is_user_code(site)), ())
