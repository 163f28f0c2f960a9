"""Which lines of the user's made steps long, by what was sampled while they lasted."""

from collections import defaultdict
from typing import Self

from efprof.artifacts.readings import LongStep, SampledStack, read_evaluations, read_long_steps
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources, place_of
from efprof.model import SourceLine, frozen_dataclass


@frozen_dataclass
class LongLine:
    """A line at which long steps leave the frames of a usual update.

    Most of their time was at the user's line `inner`, and `inside` that function of a library, None where it was at the
    line itself. Of a usual step's samples `usual_share` were at the line too. An evaluation was seen to begin in
    `num_evaluated` of the steps.
    """

    blame: SourceLine
    inner: SourceLine
    inside: str | None
    num_steps: int
    seconds: float
    usual_share: float
    num_evaluated: int

    @property
    def may_wait(self) -> bool:
        """True if nothing is known to run there: the line itself may wait for a device."""
        return self.inside is None and self.inner == self.blame

    @property
    def is_profiler(self) -> bool:
        """True if a profiler of the program's own puts together what it recorded."""
        return (self.inside or "").startswith(("torch.profiler", "torch.autograd.profiler"))


@frozen_dataclass
class LongSteps:
    """The lines, and the number of long steps."""

    lines: tuple[LongLine, ...]
    num_steps: int

    @property
    def profiler_s(self) -> float:
        """What a profiler of the program's own took to put its records together."""
        return sum(line.seconds for line in self.lines if line.is_profiler)

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where nobody looked for long steps."""
        steps, sources = read_long_steps(run.rank_folder), run.get(Sources)
        found: dict[str, list[tuple[LongStep, SampledStack]]] = defaultdict(list)
        for step in steps:
            for stack in step.stacks:
                if stack.lines:
                    found[place_of(stack.lines[0])].append((step, stack))
        evaluations = [each.started_ns for each in read_evaluations(run.rank_folder)]
        evaluated = {
            step.started_ns
            for step in steps
            if any(0 <= began_ns - step.started_ns < step.seconds * 1e9 for began_ns in evaluations)
        }
        return cls(lines=tuple(_line(sources, samples, evaluated) for samples in found.values()), num_steps=len(steps))


def _line(sources: Sources, samples: list[tuple[LongStep, SampledStack]], evaluated: set[int]) -> LongLine:
    seconds: dict[tuple[str, str | None], float] = defaultdict(float)
    for _, stack in samples:
        seconds[stack.lines[-1], stack.inside] += stack.seconds
    inner, inside = max(seconds, key=lambda place: seconds[place])
    numbers = {step.started_ns for step, _ in samples}
    last = samples[-1][1]
    return LongLine(
        blame=sources.line(last.lines[0]),
        inner=sources.line(inner),
        inside=inside,
        num_steps=len(numbers),
        seconds=sum(seconds.values()),
        usual_share=last.usual_share,
        num_evaluated=len(numbers & evaluated),
    )
