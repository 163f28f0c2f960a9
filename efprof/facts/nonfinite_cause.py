"""The line and the mechanism behind the first non-finite value: a singular operation, an explosion, or unknown."""

from dataclasses import dataclass
from typing import Literal, Self

from efprof.artifacts.events import SuspectOperation
from efprof.facts.data_origin import data_origin
from efprof.facts.nonfinite import NonFinite
from efprof.facts.operation_lines import OperationLines, operation_of
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.model import NotRecorded, SourceLine, ThinEvidence

BAD_DATA = "data that is NaN or Inf already"
"""How the recorder calls what comes into the graph from outside."""
OVERFLOW = "results that are not finite"
"""How the recorder calls what no singular point explains."""


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
            lines = run.get(OperationLines)
            sites = {index: lines.sites_of(one.node, one.offset) for index, one in enumerate(suspects)}
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


def _may_overflow(one: SuspectOperation) -> bool:
    return operation_of(one.node) == "pow" or one.operand == OVERFLOW or is_guess(one)


def is_guess(one: SuspectOperation) -> bool:
    """Whether it was named for what it can do, after backward had freed what it was given."""
    return one.num_elements == 0
