"""Has the host go on instead of waiting for a device: what to write instead of each call that makes it wait."""

from efprof.fixes.source_edit import delete_statement
from efprof.model import Fix, SourceFile

BY_SHAPE = (
    "Keep the shape: `torch.where(mask, x, other)`, or multiply by the mask: how many it chooses is then not read."
)
ADVICE = {
    **dict.fromkeys(("mask", "masked_select", "nonzero", "where", "argwhere"), BY_SHAPE),
    "repeat_interleave": "Pass `output_size=`, the sum of the repeats, where the host knows it.",
    "one_hot": "Pass `num_classes=`: the largest value is then not read.",
    "copy": "Copy from pinned memory and go on: `pin_memory=True` in the `DataLoader`, or `.pin_memory()` once, and "
    "`.to(device, non_blocking=True)`.",
    "synchronize": "Delete it. To measure time, record `torch.cuda.Event(enable_timing=True)` and read it later.",
}


def go_on(file: SourceFile, line: int, asked: str) -> Fix:
    """What ends the wait that `asked` makes on this line."""
    edit = delete_statement(file, line) if asked == "synchronize" else None
    in_general = f"`{asked}` reads values to know a size: have it run where the batch is made, or less often."
    return Fix.by(edit, "review", ADVICE.get(asked, in_general))
