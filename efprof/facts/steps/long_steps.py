"""Which lines of the user's made steps long, by what was sampled while they lasted."""

from collections import defaultdict
from typing import Self

from efprof.artifacts.readings import EvaluationRecord, LongStep, SampledStack, read_evaluations, read_long_steps
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources, place_of
from efprof.model import SourceLine, frozen_dataclass


@frozen_dataclass
class LongLine:
    """A line at which long steps leave the frames of a usual update.

    Most of their time was at the user's line `inner`, and `inside` that function of a library, None where it was at the
    line itself. Of a usual step's samples `usual_share` were at the line too. An evaluation was seen to begin in
    `num_evaluated` of the steps. `is_rollout` where rollouts took as long in them: what made the data is needed.
    """

    blame: SourceLine
    inner: SourceLine
    inside: str | None
    num_steps: int
    seconds: float
    usual_share: float
    num_evaluated: int
    is_rollout: bool

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
        found = defaultdict[str, list[tuple[LongStep, SampledStack]]](list)
        for step in steps:
            for stack in step.stacks:
                if stack.lines:
                    found[place_of(stack.lines[0])].append((step, stack))
        evaluations = read_evaluations(run.rank_folder)
        within = {
            step.started_ns: [
                each for each in evaluations if 0 <= each.started_ns - step.started_ns < step.seconds * 1e9
            ]
            for step in steps
        }
        return cls(lines=tuple(_line(sources, samples, within) for samples in found.values()), num_steps=len(steps))


def _line(
    sources: Sources, samples: list[tuple[LongStep, SampledStack]], within: dict[int, list[EvaluationRecord]]
) -> LongLine:
    seconds = defaultdict[tuple[str, str | None], float](float)
    of_step = defaultdict[int, float](float)
    for step, stack in samples:
        seconds[stack.lines[-1], stack.inside] += stack.seconds
        of_step[step.started_ns] += stack.seconds
    inner, inside = max(seconds, key=lambda place: seconds[place])
    last = samples[-1][1]
    rolled = {step: sum(each.total_us for each in within[step] if each.is_rollout) / 1e6 for step in of_step}
    return LongLine(
        blame=sources.line(last.lines[0]),
        inner=sources.line(inner),
        inside=inside,
        num_steps=len(of_step),
        seconds=sum(seconds.values()),
        usual_share=last.usual_share,
        num_evaluated=sum(any(not each.is_rollout for each in within[step]) for step in of_step),
        is_rollout=0 < sum(spent for step, spent in of_step.items() if rolled[step]) <= sum(rolled.values()),
    )
