"""A peak of memory that one forward line's gradient makes."""

from efprof.facts.peak.backward_rise import BackwardJump, Temporaries, how_jump_is_known
from efprof.facts.peak.window_memory import WindowMemory
from efprof.facts.run.run import Run
from efprof.facts.source.sources import line_at
from efprof.model import Examination, Finding, Fix, Gain
from efprof.units import format_bytes, format_count, format_share


def backward_peak(run: Run) -> Examination:
    """Find the forward line whose gradient makes the peak of memory.

    ## What it finds
    A backward pass whose first operations need so much temporary memory that they alone set the peak: the loss over a
    large vocabulary, a matrix of pairwise distances, reduced to a number.

    ## Why it matters
    That one instant limits the batch; the rest of the step would fit a larger one.

    ## Fix
    Do the operation in parts, as many as it takes for another instant to make the peak.

    ## Predicted gain
    The recorded events replayed with all but one part of its memory taken away.
    """
    jump = run.get(BackwardJump)
    steps = format_count(len({stretch.step for stretch in jump.window.stretches}), "step")
    looked_at = f"{len(jump.window.events):,} allocations and releases of {steps}"
    return Examination(looked_at=looked_at, findings=() if jump.guilty is None else (_finding(run, jump, jump.guilty),))


def _finding(run: Run, jump: BackwardJump, made: Temporaries) -> Finding:
    num_chunks = jump.num_chunks(made)
    saved = jump.saved_bytes(made.split_blocks, num_chunks)
    low, high = jump.saved_bytes(made.own_blocks, num_chunks), jump.saved_bytes(made.split_blocks, None)
    where = f"in {made.module}" if made.module else "outside any module"
    return Finding(
        blame=line_at(run, made.site),
        category="memory",
        headline="One line's gradient makes the peak of memory",
        message=f"Backward of one line raises memory by {format_bytes(jump.jump_bytes)}, "
        f"{format_share(jump.jump_bytes / jump.peak_bytes)} of the window's peak.",
        why=f"`{made.operation}` {where} makes the gradient of its whole input at once.",
        fix=Fix.by_hand(
            f"Compute this line, with the layer that makes its largest input, in {num_chunks} checkpointed parts along "
            "the batch. `part_of_loss` does what this line does and sums instead of averaging: "
            "`loss = sum(checkpoint(part_of_loss, inputs, targets, use_reentrant=False) for "
            f"inputs, targets in zip(all_inputs.chunk({num_chunks}), all_targets.chunk({num_chunks}))) / "
            "all_targets.numel()`."
        ),
        gain=Gain(
            basis="replay",
            explanation="the recorded allocations replayed with what this line makes, and its largest input, in "
            f"{num_chunks} parts, one at a time; at least this line's own, at most all of them",
            peak_bytes=saved,
            peak_bytes_interval=(float(low), float(high)),
        ),
        evidence=(
            run.get(WindowMemory).series,
            how_jump_is_known(jump, made),
        ),
    )
