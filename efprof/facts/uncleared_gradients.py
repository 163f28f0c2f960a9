"""The optimizers whose gradients nothing clears between their steps, as the recorder saw their first steps."""

from dataclasses import dataclass
from typing import Self

from efprof.artifacts.events import GradientClearing, read_events
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.model import NotRecorded, SourceLine, ThinEvidence


@dataclass(frozen=True, kw_only=True, slots=True)
class UnclearedOptimizer:
    """One of them: before `num_steps` of its steps, all that were watched, its gradients were never cleared.

    `backwards` are the lines of the passes from which it takes a step, in order. `step` is the line that steps it, None
    where no line of the user's does; `is_alone` where no pass for another optimizer's step adds to its gradients.
    """

    name: str
    num_steps: int
    backwards: tuple[SourceLine, ...]
    step: SourceLine | None
    is_alone: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class UnclearedGradients:
    """`num_optimizers` were watched until it was clear what becomes of their gradients."""

    num_optimizers: int
    optimizers: tuple[UnclearedOptimizer, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Read events.

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
        optimizers = (
            UnclearedOptimizer(
                name=event.optimizer,
                num_steps=event.num_steps,
                backwards=tuple(map(sources.line, event.backward_sites)),
                step=None if event.step_site is None else sources.line(event.step_site),
                is_alone=not event.num_earlier_backwards,
            )
            for event in kept
        )
        return cls(num_optimizers=sum(event.outcome != "changed" for event in seen), optimizers=tuple(optimizers))
