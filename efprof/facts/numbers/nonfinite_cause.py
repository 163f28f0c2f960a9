"""The line and the mechanism behind the first non-finite value: a singular operation, an explosion; the evidence.

The operation behind an autograd node is known by the node's sequence number less the one at the start of its step's
forward pass; the same offset in a step that a profiler window recorded is the same operation, as long as every step
runs the same code.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Literal, Self

import numpy as np

from efprof.artifacts.events import OptimizerBuilt, SuspectOperation, events_of
from efprof.artifacts.hunts import Origin
from efprof.artifacts.steps import StepRecord
from efprof.artifacts.trace.columns import ABSENT, Trace
from efprof.artifacts.trace.read import read_window, trace_paths
from efprof.facts.numbers.hunted import Hunted, how_it_is_known, is_beyond_measure, why_of
from efprof.facts.numbers.nonfinite import NonFinite
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources, line_at, placed_nodes, split_site
from efprof.model import Narrative, NotRecorded, SourceLine, ThinEvidence, frozen_dataclass

Mechanism = Literal["operation", "data", "explosion", "update", "unknown"]

BAD_DATA = "data that is NaN or Inf already"
"""How the recorder calls what comes into the graph from outside."""
OVERFLOW = "results that are not finite"
"""How the recorder calls what no singular point explains."""
OPERATORS: dict[str, type[ast.operator]] = {
    "div": ast.Div, "pow": ast.Pow, "mul": ast.Mult, "add": ast.Add, "sub": ast.Sub, "mm": ast.MatMult,
    "bmm": ast.MatMult, "remainder": ast.Mod, "floordivide": ast.FloorDiv,
}  # fmt: skip
"""Operations that the source may spell with an operator: no call is recorded for it, only the function around it."""


@frozen_dataclass
class NonFiniteCause:
    """`operation` is None where no singular operation was found.

    `blame` is the operation's line where there is one candidate, else the line that calls backward; of bad data, the
    operation is the first that it is handed to. `why_no_line` says why an operation's line is not known.
    """

    mechanism: Mechanism
    blame: SourceLine
    operation: SuspectOperation | None = None
    why_no_line: str = ""
    origin: Origin | None = None
    """Where a second run has shown it: then the rest is told by that."""

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises ThinEvidence where no line at all is known.

        Values that explode overflow anywhere, in a square first, whatever the sign of its base: only an operation that
        has a singular point is a suspect then, and of those not `pow`.
        """
        found = run.get(NonFinite)
        hunted = run.find(Hunted)
        if hunted is not None and hunted.origin is not None and hunted.origin.site is not None:
            return cls._of_origin(run, found, hunted, line_at(run, hunted.origin.site))
        if found.is_of_update and not found.has_exploded:
            name = found.parameter.optimizer if found.parameter else ""
            return cls(mechanism="update", blame=_line_of_optimizer(run, found, name))
        suspects = list(found.suspects)
        if found.has_exploded:
            singular = (one for one in suspects if one.operand != OVERFLOW)
            suspects = [one for one in singular if operation_of(one.node) != "pow"]
        if suspects:
            return cls._of_operation(run, found, suspects)
        blame = _line_at(run, found, found.site)
        has_exploded = found.has_exploded or (hunted is not None and hunted.explosion is not None)
        return cls(mechanism="explosion" if has_exploded else "unknown", blame=blame)

    @classmethod
    def _of_origin(cls, run: Run, found: NonFinite, hunted: Hunted, line: SourceLine) -> Self:
        """Numbers beyond all measure overflow anywhere: where gradients exploded before, those are the fault."""
        origin = hunted.origin
        assert origin is not None
        has_exploded = found.has_exploded or hunted.explosion is not None
        if is_beyond_measure(origin) and has_exploded and hunted.grown_buffer is None:
            return cls(mechanism="explosion", blame=_line_at(run, found, found.site), origin=origin)
        if origin.optimizer:
            return cls(mechanism="update", blame=_line_of_optimizer(run, found, origin.optimizer), origin=origin)
        mechanism: Mechanism = "data" if origin.kind == "given" else "operation"
        return cls(mechanism=mechanism, blame=line, origin=origin)

    @classmethod
    def _of_operation(cls, run: Run, found: NonFinite, suspects: list[SuspectOperation]) -> Self:
        """The first suspect whose line is sure; else the first suspect."""
        sources, why = run.get(Sources), ""
        sites: dict[int, tuple[str, ...]] = {}
        try:
            records = [record for record in run.steps if record.sequence is not None]
            traces = map(read_window, trace_paths(run.rank_folder))
            operations = [one for trace in traces for one in _operations(trace, records, sources)]
            sites = {index: sites_of_node(operations, one.node, one.offset) for index, one in enumerate(suspects)}
        except NotRecorded as absent:
            why = str(absent)
        index = next((index for index, places in sites.items() if len(places) == 1), 0)
        places = sites.get(index, ())
        blame = _line_at(run, found, places[0] if len(places) == 1 else found.site)
        if not why and len(places) != 1:
            lines = ", ".join(str(sources.line(place)) for place in places)
            why = f"several lines call it: {lines}" if lines else "no recorded window holds that operation"
        return cls(
            mechanism="data" if suspects[index].operand == BAD_DATA else "operation",
            blame=blame,
            operation=suspects[index],
            why_no_line=why,
        )

    @property
    def operation_name(self) -> str:
        """The operation as the user calls it: `log` for `LogBackward0`."""
        return operation_of(self.operation.node) if self.operation else ""


def _line_of_optimizer(run: Run, found: NonFinite, name: str) -> SourceLine:
    """Where one of that class was built last; else the line that calls backward."""
    built = [event.site for event in events_of(run.rank_folder, OptimizerBuilt) if event.optimizer == name]
    return _line_at(run, found, next(filter(None, reversed(built)), found.site))


def _line_at(run: Run, found: NonFinite, site: str | None) -> SourceLine:
    """At the site; where nothing called backward, as with `torch.autograd.grad`, where an optimizer was built."""
    built = [event.site for event in events_of(run.rank_folder, OptimizerBuilt) if event.site]
    if site is None and not built:
        raise ThinEvidence(f"step {found.first_step}'s {found.what} is {found.value}, and no line was recorded.")
    return line_at(run, site or built[-1])


def why_nonfinite(run: Run, found: NonFinite, cause: NonFiniteCause) -> str:
    """What is behind it, in a sentence or two."""
    if cause.origin is not None:
        return why_of(run.get(Hunted), cause.mechanism)
    if cause.mechanism == "explosion" and found.explosion:
        return f"Gradients exploded to {float(f'{found.explosion:.2g}'):,.6g} times their usual norm."
    if cause.mechanism == "explosion" and found.rise:
        return f"The loss had risen to {float(f'{found.rise:.2g}'):,.6g} times the largest before."
    if cause.mechanism == "update" and (bad := found.parameter) is not None:
        return f"{bad.optimizer}'s update left `{bad.name}` ({bad.dtype}) not finite; its gradients were finite."
    if cause.operation is None:
        return "Which operation made the first of them was not seen."
    one = cause.operation
    where = "this line" if not cause.why_no_line else f"a line not known ({cause.why_no_line})"
    if cause.mechanism == "data":
        return f"Data, or a detached tensor, holds NaN or Inf ({one.num_bad:,} of {one.num_elements:,})."
    return f"`{cause.operation_name}` on {where} meets {one.operand} ({one.num_bad:,} of {one.num_elements:,})."


def how_nonfinite_is_known(run: Run, found: NonFinite, cause: NonFiniteCause) -> Narrative:
    hunted = run.find(Hunted)
    more = ["`efprof hunt` runs the command again and tells where it is born."]
    if hunted is not None:
        is_shown = hunted.origin is not None
        more = [*how_it_is_known(run, hunted)] if is_shown else [f"A second run did not show it: {hunted.hunt.why}."]
    return Narrative.of(
        f"The {found.what} is {found.value} first at step {found.first_step}. Where an optimizer steps with it, every "
        "parameter becomes NaN, and no later step repairs them.",
        *filter(None, [_how_known(found, cause)]),
        *more,
    )


def _how_known(found: NonFinite, cause: NonFiniteCause) -> str:
    one, bad = cause.operation, found.parameter
    if cause.origin is not None:
        return ""
    if cause.mechanism == "update" and bad is not None:
        seen = "a running value of the optimizer's was finite there" if bad.has_finite_state else "its norm was finite"
        return (
            f"Before that step's forward pass `{bad.name}` was not finite in {bad.num_bad:,} of {bad.num_elements:,} "
            f"places; the gradient before was: {seen}."
        )
    if one is None:
        why = "No operation with a singular operand was found in the forward graph"
        if found.is_late:
            why = "No operation was looked for, since the device told the value after backward had freed the graph"
        elif found.what == "gradient":
            why = "It was made within the backward pass, of which no graph is left"
        norm = "was as usual" if found.norms else "was not read"
        norm = f"had reached {found.explosion:.0f} times its usual value" if found.explosion else norm
        return f"{why}; the gradient norm {norm} just before."
    known = "That step's autograd graph was walked before backward freed it: "
    known += f"{one.node} is the first node that was given {one.operand} ({one.num_bad:,} of {one.num_elements:,})."
    if not cause.why_no_line:
        return f"{known} The operation at the same place in a recorded step was called on the blamed line."
    return f"{known} Its line is not known: {cause.why_no_line}."


@frozen_dataclass
class ForwardOperation:
    """One operation of a recorded forward pass; `sites` are the user's lines it can have come from."""

    name: str
    offset: int
    sites: tuple[str, ...]


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
