"""Does one operation's work in parts, each recomputed in backward, so that only one part's tensors exist at a time."""

from efprof.model import Fix


def split_operation(num_chunks: int) -> Fix:
    """What to write instead of the blamed line; a person must say what is split along which dimension."""
    parts = f"zip(all_inputs.chunk({num_chunks}), all_targets.chunk({num_chunks}))"
    return Fix(
        summary=f"Do the work of this line in {num_chunks} parts along the batch, together with the layer that makes "
        "its largest input, each part under activation checkpointing: `loss = sum(checkpoint(part_of_loss, inputs, "
        f"targets, use_reentrant=False) for inputs, targets in {parts}) / all_targets.numel()`, where `part_of_loss` "
        "does what this line does and sums instead of averaging.",
        applicability="manual",
    )
