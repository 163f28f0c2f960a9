"""The line and the mechanism behind the first non-finite value: a singular operation, an explosion; the evidence."""

import ast
from dataclasses import dataclass
from typing import Literal, Self

from efprof.artifacts.events import SuspectOperation
from efprof.facts.numbers.nonfinite import NonFinite
from efprof.facts.numbers.operation_lines import forward_operations, operation_of, sites_of_node
from efprof.facts.run.run import Run
from efprof.facts.source.sources import MODULE, Sources, name_of, placed_nodes
from efprof.model import (
    Narrative,
    NotRecorded,
    Numbers,
    Series,
    SeriesLine,
    SourceLine,
    Table,
    ThinEvidence,
    called_name,
)

BAD_DATA = "data that is NaN or Inf already"
"""How the recorder calls what comes into the graph from outside."""
OVERFLOW = "results that are not finite"
"""How the recorder calls what no singular point explains."""

SINGULAR_CALLS = frozenset(
    {"log", "log2", "log10", "sqrt", "rsqrt", "div", "div_", "pow", "acos", "asin", "std", "exp"}
)
"""Operations without a finite value for some finite operands; outside of autograd nothing records their results."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NonFiniteCause:
    """`operation` is None where no singular operation was found; `candidates` are the lines that may have called it.

    `blame` is the operation's line where there is one candidate, else the line that calls backward; of bad data, the
    line that made it or else the one that hands it to the first operation. `why_no_line` says why an operation's line
    is not known.
    """

    mechanism: Literal["operation", "data", "explosion", "unknown"]
    blame: SourceLine
    operation: SuspectOperation | None = None
    candidates: tuple[SourceLine, ...] = ()
    why_no_line: str = ""

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises ThinEvidence where no line at all is known.

        Values that explode overflow anywhere, in a square first, whatever the sign of its base: only an operation that
        has a singular point is a suspect then, and of those not `pow`.
        """
        found, sources = run.get(NonFinite), run.get(Sources)
        suspects = [one for one in found.suspects if not (found.explosion and _may_overflow(one))]
        if suspects:
            return cls._of_operation(run, found, suspects)
        if found.site is None:
            raise ThinEvidence(f"step {found.first_step}'s {found.what} is {found.value}, and no line was recorded.")
        mechanism: Literal["explosion", "unknown"] = "explosion" if found.explosion else "unknown"
        return cls(mechanism=mechanism, blame=sources.line(found.site))

    @classmethod
    def _of_operation(cls, run: Run, found: NonFinite, suspects: list[SuspectOperation]) -> Self:
        """The first suspect whose line is sure; else the first suspect."""
        sources, why = run.get(Sources), ""
        sites: dict[int, tuple[str, ...]] = {}
        try:
            operations = forward_operations(run)
            sites = {index: sites_of_node(operations, one.node, one.offset) for index, one in enumerate(suspects)}
        except NotRecorded as absent:
            why = str(absent)
        index = next((index for index, places in sites.items() if len(places) == 1), 0)
        places = sites.get(index, ())
        site = places[0] if len(places) == 1 else found.site
        if site is None:
            raise ThinEvidence(f"step {found.first_step}'s {found.what} is {found.value}, and no line was recorded.")
        if not why and len(places) != 1:
            why = "several lines call it" if places else "no recorded window holds that operation"
        blame = sources.line(site)
        if suspects[index].operand == BAD_DATA:
            backward = sources.line(found.site) if found.site else None
            origin = data_origin(blame, backward, sources)
            return cls(mechanism="data", blame=origin or blame, operation=suspects[index])
        return cls(
            mechanism="operation",
            blame=blame,
            operation=suspects[index],
            candidates=tuple(sources.line(place) for place in places),
            why_no_line=why,
        )

    @property
    def operation_name(self) -> str:
        """The operation as the user calls it: `log` for `LogBackward0`."""
        return operation_of(self.operation.node) if self.operation else ""


def data_origin(line: SourceLine, backward: SourceLine | None, sources: Sources) -> SourceLine | None:
    """The last statement that divides, roots or logs to make a name that `line` passes on.

    Where `line` lies in a model, whose inputs have other names outside, that of a name which any call above the line of
    `backward` is given. None where there is no such statement: the data came bad from where it was read.
    """
    found = _made_above(line, sources, line.line)
    if found is None and backward is not None and backward.function != line.function:
        return _made_above(backward, sources, 1)
    return found


def _may_overflow(one: SuspectOperation) -> bool:
    return operation_of(one.node) == "pow" or one.operand == OVERFLOW or is_guess(one)


def is_guess(one: SuspectOperation) -> bool:
    """Whether it was named for what it can do, after backward had freed what it was given."""
    return one.num_elements == 0


def loss_series(found: NonFinite) -> Series:
    """The loss of every step that has one, with the first bad step marked; NaN leaves a gap."""
    assert found.first_step is not None
    finite = [(step, loss) for step, loss in found.losses if abs(loss) < float("inf")]
    return Series(
        title="Loss until it was lost",
        y_label="loss",
        y_unit="",
        lines=(
            SeriesLine(
                label="loss",
                x=tuple(float(step) for step, _ in finite),
                y=tuple(loss for _, loss in finite),
                is_highlighted=True,
            ),
        ),
        marks=((float(found.first_step), f"first {found.value}"),),
    )


def loss_numbers(found: NonFinite) -> Numbers:
    assert found.first_step is not None
    return Numbers.of(
        "When and how much",
        ("first bad step", found.first_step, "count"),
        ("bad steps from there on", found.num_bad, "count"),
        ("steps from there on", found.num_from_first, "count"),
        ("gradient norm of the last good step", found.norms[-1] if found.norms else None, ""),
        ("usual gradient norm before", found.usual_norm, ""),
    )


def suspect_table(found: NonFinite) -> tuple[Table, ...]:
    """The operations in which the value may have been born, in the order they ran; none where none was found."""
    if not found.suspects:
        return ()
    return (
        Table(
            title="Operations with finite input and a result that is not, in the order they ran",
            columns=("autograd node", "what is wrong", "bad", "elements", "dtype"),
            units=("", "", "count", "count", ""),
            rows=tuple((one.node, one.operand, one.num_bad, one.num_elements, one.dtype) for one in found.suspects),
        ),
    )


def how_nonfinite_is_known(found: NonFinite, cause: NonFiniteCause) -> Narrative:
    return Narrative.of(
        f"From step {found.first_step} on the {found.what} is {found.value}; the optimizer writes it into every "
        "parameter, and no later step can repair them.",
        _how_known(found, cause),
        _when_wrong(cause),
    )


def _how_known(found: NonFinite, cause: NonFiniteCause) -> str:
    match cause.mechanism:
        case "data":
            assert cause.operation is not None
            return (
                f"That step's autograd graph was walked before backward freed it: {cause.operation.node} is its first "
                "node, and what it was given, which no node had made, was not finite. Blamed is the last statement "
                "that can have made it so, or else the line that hands it on."
            )
        case "operation":
            assert cause.operation is not None
            text = _how_walked(cause.operation)
            if not cause.why_no_line:
                return text + " The operation at the same place in a recorded step was called on the blamed line."
            others = ", ".join(str(line) for line in cause.candidates)
            where = f" (candidates: {others})" if others else ""
            return f"{text} Its line could not be pinned: {cause.why_no_line}{where}."
        case "explosion":
            return (
                f"{_not_found(found)}, and the gradient norm had reached "
                f"{found.explosion:.0f} times its usual value just before: gradients exploded until they overflowed."
            )
    return f"{_not_found(found)}, and the gradient norm was as usual before: the value was born " + (
        "in any operation of that step, or in the batch itself."
        if found.is_late
        else "in backward, in the batch itself or in an operation that keeps no trace."
    )


def _not_found(found: NonFinite) -> str:
    if found.is_late:
        return "No operation was looked for, since the device told the value after backward had freed the graph"
    return "No operation with a singular operand was found in the forward graph"


def _how_walked(one: SuspectOperation) -> str:
    if is_guess(one):
        return (
            "The loss was finite, so the step's autograd graph was walked only when backward had made a bad gradient: "
            f"{one.node} is the first node whose slope can be infinite where its value is finite."
        )
    return (
        f"That step's autograd graph was walked before backward freed it: {one.node} is the first "
        f"node that was given {one.operand} ({one.num_bad:,} of {one.num_elements:,} elements)."
    )


def _when_wrong(cause: NonFiniteCause) -> str:
    if cause.mechanism == "operation":
        return (
            "A step that runs other operations than the recorded one shifts the count, and a bad value that an "
            "in-place operation made can show up at a later node."
        )
    return (
        "A bad batch can look the same: check that step's inputs for NaN and Inf, or run it again under "
        "torch.autograd.set_detect_anomaly(True)."
    )


def _made_above(line: SourceLine, sources: Sources, first: int) -> SourceLine | None:
    """The last such statement above `line` in its function; its name is passed on below it, from line `first` on."""
    nodes = placed_nodes(sources.tree(line.file))
    inside = [one.node for one in nodes if one.function == (line.function or MODULE)]
    calls = [node for node in inside if isinstance(node, ast.Call) and first <= node.lineno <= line.line]
    passed = [(given.id, given.lineno) for call in calls for given in call.args if isinstance(given, ast.Name)]
    made = 0
    for node in inside:
        if isinstance(node, ast.Assign | ast.AugAssign) and node.lineno < line.line and _is_singular(node):
            target = name_of(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            if any(name == target and at > node.lineno for name, at in passed):
                made = max(made, node.lineno)
    return sources.line(f"{line.file}:{made}:{line.function}") if made else None


def _is_singular(statement: ast.Assign | ast.AugAssign) -> bool:
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Div | ast.Pow):
        return True
    for node in ast.walk(statement.value):
        match node:
            case ast.BinOp(op=ast.Div(), right=right) if not isinstance(right, ast.Constant):
                return True
            case ast.Constant(value="nan" | "NaN" | "inf") | ast.Attribute(attr="nan" | "inf"):
                return True
        if called_name(node) in SINGULAR_CALLS:
            return True
    return False
