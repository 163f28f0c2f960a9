"""The line and the mechanism behind the first non-finite value: a singular operation, an explosion, or unknown."""

from dataclasses import dataclass
from typing import Literal, Self

from efprof.artifacts.events import SuspectOperation
from efprof.facts.nonfinite import NonFinite
from efprof.facts.operation_lines import OperationLines, operation_of
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.model import NotRecorded, SourceLine, ThinEvidence


@dataclass(frozen=True, kw_only=True, slots=True)
class NonFiniteCause:
    """`operation` is None where no singular operation was found; `candidates` are the lines that may have called it.

    `blame` is the operation's line where there is one candidate, else the line that calls backward; `why_no_line` says
    why an operation's line is not known.
    """

    mechanism: Literal["operation", "explosion", "unknown"]
    blame: SourceLine
    operation: SuspectOperation | None = None
    candidates: tuple[SourceLine, ...] = ()
    why_no_line: str = ""

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises ThinEvidence where no line at all is known.

        Values that explode overflow in a square first, whatever the sign of its base: there `pow` is no suspect.
        """
        found, sources = run.get(NonFinite), run.get(Sources)
        suspects = [one for one in found.suspects if not (found.explosion and operation_of(one.node) == "pow")]
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
        return cls(
            mechanism="operation",
            blame=sources.line(site),
            operation=suspects[index],
            candidates=tuple(sources.line(place) for place in places),
            why_no_line=why,
        )

    @property
    def operation_name(self) -> str:
        """The operation as the user calls it: `log` for `LogBackward0`."""
        return operation_of(self.operation.node) if self.operation else ""
