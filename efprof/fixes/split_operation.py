"""Does one operation's work in parts, each recomputed in backward, so that only one part's tensors exist at a time."""

from efprof.model import Fix

ATTENTION = (
    "If this is an attention, call `functional.scaled_dot_product_attention`, which never makes the matrix of all "
    "scores. Otherwise: "
)


def split_operation(num_chunks: int, operation: str = "") -> Fix:
    """What to write instead of the blamed line; a person must say what is split along which dimension."""
    parts = f"zip(all_inputs.chunk({num_chunks}), all_targets.chunk({num_chunks}))"
    instead = ATTENTION if "softmax" in operation and "log_softmax" not in operation else ""
    return Fix(
        summary=f"{instead}Do the work of this line in {num_chunks} parts along the batch, together with the layer "
        "that makes its largest input, each part under activation checkpointing: `loss = "
        "sum(checkpoint(part_of_loss, inputs, targets, use_reentrant=False) for inputs, targets in "
        f"{parts}) / all_targets.numel()`, where `part_of_loss` does what this line does and sums instead of "
        "averaging.",
        applicability="manual",
    )
