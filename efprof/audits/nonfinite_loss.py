"""A loss or gradient that turned to NaN or Inf."""

from efprof.facts.numbers.hunted import Hunted, Origin, dtype_of, forward_name, tables_of
from efprof.facts.numbers.lost_updates import clip_in_time
from efprof.facts.numbers.nonfinite import NonFinite
from efprof.facts.numbers.nonfinite_cause import NonFiniteCause, how_nonfinite_is_known, why_nonfinite
from efprof.facts.run.run import Run
from efprof.facts.source.sources import file_of
from efprof.fixes.keep_finite import (
    clip_gradients,
    keep_buffer_bounded,
    keep_data_finite,
    keep_operand_finite,
    keep_update_finite,
)
from efprof.model import Examination, Finding, Fix, Gain, SourceFile

LOST_SHARE = 0.5
"""Where at least half of the steps from the first bad one on are bad, the run did not recover."""

HEADLINES = {"explosion": "Gradients explode", "update": "An update turns parameters to NaN or Inf"}
"""By what is behind it; else what turned to what."""


def nonfinite_loss(run: Run) -> Examination:
    """Find the line in which the first NaN or Inf was born.

    ## What it finds
    The first step whose loss or gradient is NaN or Inf, and what is behind it: a log or root of zero, a division by
    zero, an overflow, bad data, gradients that exploded, or an optimizer's update.

    ## Why it matters
    An optimizer's step with it turns every parameter to NaN; all training after it is lost.

    ## Fix
    Keep the operand where the operation is finite; for an explosion, clip the gradients at the norm they had before;
    for an update, an `eps` that is not zero in the parameters' precision.

    ## Predicted gain
    No time and no memory: the steps after the first bad one.
    """
    found = run.get(NonFinite)
    num_losses = sum(record.loss is not None for record in run.steps)
    num_norms = sum(record.gradient_norm is not None for record in run.steps)
    looked_at = f"the loss of {num_losses} steps and the gradient norm of {num_norms}"
    if found.first_step is None:
        return Examination(looked_at=looked_at)
    return Examination(looked_at=looked_at, findings=(_finding(run, found, found.first_step),))


def _finding(run: Run, found: NonFinite, first_step: int) -> Finding:
    cause = run.get(NonFiniteCause)
    were_read = " that were read" if found.num_read < found.num_from_first else ""
    become = "held back" if found.is_standstill else "lost"
    lost = f"{found.num_bad:,} of the {found.num_read:,} steps{were_read} from there on are {become}"
    return Finding(
        blame=cause.blame,
        category="numbers",
        headline=HEADLINES.get(cause.mechanism, f"The {found.what} turns to {found.value}"),
        message=f"The {found.what} is {found.value} at step {first_step:,}; {lost}.",
        why=why_nonfinite(run, found, cause),
        fix=_fix(run, found, cause, file_of(run, cause.blame)),
        gain=Gain.none(
            f"the training after step {first_step:,}: {found.num_from_first:,} of {found.num_steps:,} steps"
        ),
        evidence=(*tables_of(run), how_nonfinite_is_known(run, found, cause)),
        severity="high" if found.num_bad >= LOST_SHARE * found.num_read else "medium",
    )


def _fix(run: Run, found: NonFinite, cause: NonFiniteCause, file: SourceFile) -> Fix:
    if cause.origin is not None:
        return _fix_of_origin(run, found, cause, cause.origin, file)
    if cause.mechanism == "update" and found.parameter is not None:
        return keep_update_finite(found.parameter.optimizer, found.parameter.eps, found.parameter.dtype)
    if cause.mechanism == "data":
        return keep_data_finite(found.first_step or 0)
    if cause.operation is not None:
        line = None if cause.why_no_line else cause.blame.line
        return keep_operand_finite(cause.operation_name, cause.operation.dtype, file, line)
    if cause.mechanism == "explosion":
        return clip_gradients(found.usual_norm, clip_in_time(run))
    return Fix.by_hand(
        f"See where it is born: `efprof hunt {run.folder.name}` runs the command again, traced around that step."
    )


def _fix_of_origin(run: Run, found: NonFinite, cause: NonFiniteCause, origin: Origin, file: SourceFile) -> Fix:
    hunted, dtype = run.get(Hunted), dtype_of(origin)
    buffer = hunted.grown_buffer
    if buffer is not None and buffer.made_at:
        return keep_buffer_bounded(buffer.name, ":".join(buffer.made_at.split(":")[:2]))
    if cause.mechanism == "explosion":
        return clip_gradients(found.usual_norm or hunted.usual_norm, clip_in_time(run))
    if cause.mechanism == "update":
        return keep_update_finite(origin.optimizer, origin.eps, dtype)
    if origin.kind == "literal":
        return Fix.by_hand("Find where that number comes from, such as an `item()` or a mean that is taken in Python.")
    if cause.mechanism == "data":
        name = next((one.name for one in origin.operands if one.name), "")
        return keep_data_finite(found.first_step or 0, name, is_masked_late=bool(origin.node))
    return keep_operand_finite(forward_name(origin).replace("_", ""), dtype, file, cause.blame.line, origin.operands)
