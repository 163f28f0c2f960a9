"""The optimizers whose gradients nothing clears between their steps, as the recorder saw their first steps."""

import math
from dataclasses import dataclass
from typing import Self

from efprof.artifacts.events import GradientClearing, read_events
from efprof.artifacts.steps import read_steps
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.model import NotRecorded, SourceLine, ThinEvidence


@dataclass(frozen=True, kw_only=True, slots=True)
class UnclearedOptimizer:
    """One of them: before `num_steps` of its steps, all that were watched, its gradients were never cleared.

    `backwards` are the lines of the passes from which it takes a step, in order, `num_backwards` how often they ran for
    it; `num_earlier` more passes added to its gradients before another optimizer stepped. `step` is the line that
    steps it, None where no line of the user's does.
    """

    name: str
    num_steps: int
    backwards: tuple[SourceLine, ...]
    num_backwards: int
    num_earlier: int
    step: SourceLine | None


@dataclass(frozen=True, kw_only=True, slots=True)
class UnclearedGradients:
    """`num_optimizers` were watched until it was clear what becomes of their gradients; `norms` are (step, norm)."""

    num_optimizers: int
    optimizers: tuple[UnclearedOptimizer, ...]
    norms: tuple[tuple[int, float], ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Read events and steps.

        Raises NotRecorded where no optimizer was watched for long enough, and ThinEvidence where none can be told of.
        """
        seen = [event for event in read_events(run.rank_folder)[0] if isinstance(event, GradientClearing)]
        if not seen:
            raise NotRecorded(
                "events.jsonl does not say what becomes of the gradients; record 20 steps with 'efprof record', of an "
                "optimizer whose gradients are neither sparse nor sharded."
            )
        if all(event.outcome == "changed" for event in seen):
            raise ThinEvidence(
                "Something changes the gradients in place after the step, be it `zero_grad(set_to_none=False)` or the "
                "optimizer itself: whether they are cleared cannot be told."
            )
        sources = run.get(Sources)
        kept = [event for event in seen if event.outcome == "kept" and event.backward_sites]
        return cls(
            num_optimizers=sum(event.outcome != "changed" for event in seen),
            optimizers=tuple(_optimizer(event, sources) for event in kept),
            norms=_norms(run) if kept else (),
        )


def _optimizer(event: GradientClearing, sources: Sources) -> UnclearedOptimizer:
    return UnclearedOptimizer(
        name=event.optimizer,
        num_steps=event.num_steps,
        backwards=tuple(map(sources.line, event.backward_sites)),
        num_backwards=event.num_backwards,
        num_earlier=event.num_earlier_backwards,
        step=None if event.step_site is None else sources.line(event.step_site),
    )


def _norms(run: Run) -> tuple[tuple[int, float], ...]:
    """Of the steps whose gradients were read and finite."""
    records = read_steps(run.rank_folder)[0]
    norms = [(record.step, float(record.gradient_norm)) for record in records if record.gradient_norm is not None]
    return tuple((step, norm) for step, norm in norms if math.isfinite(norm))
