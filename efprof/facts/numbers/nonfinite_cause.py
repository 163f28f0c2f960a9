"""The line and the mechanism behind the first non-finite value: a singular operation, an explosion; the evidence."""

from dataclasses import dataclass
from typing import Literal, Self

from efprof.artifacts.events import SuspectOperation
from efprof.facts.numbers.nonfinite import NonFinite
from efprof.facts.numbers.operation_lines import forward_operations, operation_of, sites_of_node
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.model import Narrative, NotRecorded, SourceLine, ThinEvidence

BAD_DATA = "data that is NaN or Inf already"
"""How the recorder calls what comes into the graph from outside."""
OVERFLOW = "results that are not finite"
"""How the recorder calls what no singular point explains."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NonFiniteCause:
    """`operation` is None where no singular operation was found.

    `blame` is the operation's line where there is one candidate, else the line that calls backward; of bad data, the
    operation is the first that it is handed to. `why_no_line` says why an operation's line is not known.
    """

    mechanism: Literal["operation", "data", "explosion", "unknown"]
    blame: SourceLine
    operation: SuspectOperation | None = None
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
            lines = ", ".join(str(sources.line(place)) for place in places)
            why = f"several lines call it: {lines}" if lines else "no recorded window holds that operation"
        return cls(
            mechanism="data" if suspects[index].operand == BAD_DATA else "operation",
            blame=sources.line(site),
            operation=suspects[index],
            why_no_line=why,
        )

    @property
    def operation_name(self) -> str:
        """The operation as the user calls it: `log` for `LogBackward0`."""
        return operation_of(self.operation.node) if self.operation else ""


def _may_overflow(one: SuspectOperation) -> bool:
    return operation_of(one.node) == "pow" or one.operand == OVERFLOW or is_guess(one)


def is_guess(one: SuspectOperation) -> bool:
    """Whether it was named for what it can do, after backward had freed what it was given."""
    return one.num_elements == 0


def how_nonfinite_is_known(found: NonFinite, cause: NonFiniteCause) -> Narrative:
    return Narrative.of(
        f"From step {found.first_step} on the {found.what} is {found.value}; the optimizer writes it into every "
        "parameter, and no later step can repair them.",
        _how_known(found, cause),
        "A bad batch can look the same: check that step's inputs for NaN and Inf, or run it again under "
        "torch.autograd.set_detect_anomaly(True).",
    )


def _how_known(found: NonFinite, cause: NonFiniteCause) -> str:
    one = cause.operation
    if one is None:
        why = "No operation with a singular operand was found in the forward graph"
        if found.is_late:
            why = "No operation was looked for, since the device told the value after backward had freed the graph"
        norm = f"had reached {found.explosion:.0f} times its usual value" if found.explosion else "was as usual"
        return f"{why}; the gradient norm {norm} just before."
    known = "That step's autograd graph was walked before backward freed it: "
    known += f"{one.node} is the first node that was given {one.operand} ({one.num_bad:,} of {one.num_elements:,})."
    if is_guess(one):
        known = "The loss was finite, so the step's autograd graph was walked only when backward had made a bad "
        known += f"gradient: {one.node} is the first node whose slope can be infinite where its value is finite."
    if not cause.why_no_line:
        return f"{known} The operation at the same place in a recorded step was called on the blamed line."
    return f"{known} Its line is not known: {cause.why_no_line}."
