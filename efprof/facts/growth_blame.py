"""The line to blame for memory that grows and that nothing counted keeps, by the best that was seen of it."""

import contextlib
from dataclasses import dataclass
from typing import Self

from efprof.artifacts.events import BackwardCalls
from efprof.facts.backward_calls import BackwardSites
from efprof.facts.host_growth import grown_containers
from efprof.facts.kept import Kept, counted_series, line_table
from efprof.facts.kept_growth import counted_table
from efprof.facts.leaks import (
    LEAST_SHARE,
    Leaks,
    backward_line,
    growth_message,
    growth_numbers,
    memory_evidence,
    place_to_blame,
)
from efprof.facts.memory_growth import MemoryGrowth, how_it_was_fitted, rate_numbers
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.facts.survivors import Survivors
from efprof.model import Evidence, Narrative, NotRecorded, SourceLine


@dataclass(frozen=True, kw_only=True, slots=True)
class UnheldGrowth:
    """A container that was counted to grow, a `cycle` of leaves and gradients, a line whose allocations survive, or
    else the call of backward.
    """

    blame: SourceLine
    is_counted: bool
    container: Kept | None = None
    cycle: BackwardCalls | None = None
    survives: bool = False

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises ThinEvidence where not even the line that calls backward is known."""
        slope = run.get(MemoryGrowth).fit.trend.slope
        is_counted = run.get(Leaks).grown is not None
        container = _container(run, slope)
        if container is not None:
            return cls(blame=place_to_blame(run, container), container=container, is_counted=is_counted)
        if (cycle := _cycle(run)) is not None:
            return cls(blame=run.get(Sources).line(cycle.site), cycle=cycle, is_counted=is_counted)
        survivor = _survivor(run, slope)
        return cls(blame=survivor or backward_line(run), survives=survivor is not None, is_counted=is_counted)

    @property
    def leaf(self) -> str:
        """What the program calls the tensor that gets such a gradient."""
        return f"`{self.cycle.leaf}`" if self.cycle and self.cycle.leaf else "a tensor"

    @property
    def headline(self) -> str:
        """A few words."""
        if self.cycle is not None:
            return f"The gradient of {self.leaf} leads back to its own tensor"
        return (
            f"`{self.container.name}` keeps more and more" if self.container else "Memory is left behind by every step"
        )

    def message(self, run: Run) -> str:
        """How fast, where it ends, and what is known of why."""
        if self.cycle is not None:
            why = f"the gradient that this call gives {self.leaf} has a graph that leads back to it"
        elif self.container is not None:
            why = f"no variable keeps more tensors, and `{self.container.name}` was counted to get longer"
            why += "" if self.container.fed else f"; the line that feeds it is not known ({self.container.unseen})"
        elif self.survives:
            why = "most of it is allocated by this line and still alive a step later"
        else:
            why = "what holds it is not known, so this is the line that runs backward"
        return growth_message(run, why)

    @property
    def _how(self) -> str:
        if self.cycle is not None:
            return (
                f"{self.cycle.num_cycles} tensors that this call of backward gave a gradient with a graph were seen "
                "alive at once, each with that gradient. They keep each other alive through C++, where Python's "
                "garbage collector does not see them."
            )
        return "A cache of a library, or an object that only C++ holds, may."

    def evidence(self, run: Run) -> tuple[Evidence, ...]:
        """The curve, the line, the rate, what was counted, and how that is known."""
        leaks, fit = run.get(Leaks), run.get(MemoryGrowth).fit
        counted = leaks.missing
        if leaks.grown is not None:
            counted = (
                f"What keeps tensors was counted {leaks.grown.num_counts} times, and no variable was seen to keep it."
            )
        container: tuple[Evidence, ...] = ()
        if self.container is not None:
            container = (counted_series([self.container]), *line_table([self.container]))
        return (
            *memory_evidence(fit),
            run.get(Sources).snippet(self.blame),
            growth_numbers(run, rate_numbers(fit), fit.trend.slope),
            *container,
            *counted_table(leaks.grown),
            Narrative(
                title="What it means, how we know, when it is wrong",
                paragraphs=(
                    "Every step leaves memory behind that nothing releases.",
                    f"{counted} {self._how}",
                    *how_it_was_fitted(fit),
                    "A cache that is still filling, batches that get longer from step to step, or reference cycles "
                    "that Python's garbage collector has not reached yet, look the same: record more steps to tell.",
                ),
            ),
        )


def _container(run: Run, slope: float) -> Kept | None:
    """One whose entries explain it, as they do on a CPU; else one of a library, whose entries are not taken apart."""
    if "CUDA" not in run.run_file.memory_source:
        large = (one for one in grown_containers(run) if one.rate.slope >= LEAST_SHARE * slope)
        if (found := next(large, None)) is not None:
            return found
    grown = run.get(Leaks).grown
    fed = [one for one in grown.containers if one.fed and one.verdict != "bounded"] if grown else []
    return next((one for one in fed if one.fed[0].is_within_call), None)


def _cycle(run: Run) -> BackwardCalls | None:
    with contextlib.suppress(NotRecorded):
        return next(iter(run.get(BackwardSites).cycles), None)
    return None


def _survivor(run: Run, slope: float) -> SourceLine | None:
    with contextlib.suppress(NotRecorded):
        lines = run.get(Survivors).lines
        if lines and lines[0].bytes_per_step >= LEAST_SHARE * slope:
            return run.get(Sources).line(lines[0].site)
    return None
