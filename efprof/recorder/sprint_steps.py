"""Tells the state machine what it would have noted of the calls that a sprint saw in its place."""

from dataclasses import dataclass
from math import isnan

from efprof.artifacts.pending import STAGE_CODES, PendingStep, stretches_of
from efprof.recorder.open_step import OpenStep
from efprof.recorder.pattern import BACKWARD, FETCH, FETCHED, FORWARD, OPENERS, STEPPED, Codes, Pattern


@dataclass(kw_only=True, slots=True)
class Interrupted:
    """Where a sprint was broken off: the state machine goes on from here."""

    stage: str | None = None
    opener: str | None = None
    stage_start_ns: int = 0
    depth: int = 0


def fill(step: OpenStep, pending: PendingStep, pattern: Pattern, done: Codes) -> None:
    """Note what the stopwatch noted of a step of which these calls were made."""
    is_whole, instants = done is pattern.codes, pending.instants
    stretches = pattern.stretches if is_whole else stretches_of(done)
    step.start_ns, step.epoch_ns = pending.start_ns, pending.epoch_ns
    step.spans = [(stage, instants[begin], instants[end]) for stage, begin, end in stretches]
    step.samples += pending.samples
    if pending.num_losses:
        step.loss = pending.loss
    step.gradient_norm = pending.norm
    if not isnan(pending.learning_rate):
        step.learning_rate = pending.learning_rate
    step.loaders = list(pattern.loaders if is_whole else pattern.loaders[: done.count(FETCH)])
    step.sequence = pending.sequence if pending.sequence >= 0 else None
    step.num_fetches = pattern.num_fetches if is_whole else done.count(FETCHED)
    if step.loaders:
        step.had_loader = True  # so had the step before the sprint, which was alike
    step.num_backwards = pattern.num_backwards if is_whole else done.count(BACKWARD)
    step.note_fed()
    step.has_forward = FORWARD in done
    step.stepped = list(pattern.optimizers[: done.count(STEPPED)])


def interrupted_in(pending: PendingStep, done: Codes, nested: int) -> Interrupted:
    """A sprint was broken off after these calls, `nested` modules deep within the outermost one."""
    if len(done) % 2 == 0:  # between two stages
        return Interrupted()
    code = done[-1]
    return Interrupted(
        stage=STAGE_CODES[code // 2],
        opener=OPENERS[code],
        stage_start_ns=pending.instants[len(done) - 1],
        depth=1 + nested if code == FORWARD else 0,
    )
