"""What a device's headroom shows for itself: how its memory divides, how we know, and when it is wrong."""

from efprof.facts.headroom import MARGIN, Headroom
from efprof.model import Evidence, Narrative, Number, Numbers
from efprof.units import format_bytes, format_share


def headroom_evidence(headroom: Headroom) -> tuple[Evidence, ...]:
    """The division, and what it rests on."""
    return (
        Numbers(title="What a batch takes of the device", numbers=_numbers(headroom)),
        Narrative(title="What it means, how we know, when it is wrong", paragraphs=_paragraphs(headroom)),
    )


def whose_memory(headroom: Headroom) -> str:
    """Where its bytes lie, after their number."""
    if headroom.is_limited:
        return f"that the program lets itself take of {headroom.device}"
    return f"of {headroom.device}"


def _numbers(headroom: Headroom) -> tuple[Number, ...]:
    sizes = [
        (f"memory {whose_memory(headroom)}", headroom.total_bytes),
        ("used by others, or outside of the allocator", headroom.outside_bytes),
        ("reserved at most", headroom.peak_reserved_bytes),
        ("allocated at most, at a stage's boundary", headroom.peak_allocated_bytes),
        ("kept whatever the batch", headroom.fixed_bytes),
        ("taken by each sample", headroom.sample_bytes),
    ]
    numbers = [Number(label=label, value=float(size), unit="bytes") for label, size in sizes]
    numbers.append(Number(label="samples that would fit", value=float(headroom.largest_micro_batch), unit="count"))
    return tuple(numbers)


def _paragraphs(headroom: Headroom) -> tuple[str, ...]:
    return (
        "What is allocated when a forward pass begins (parameters, optimizer state, what else the program keeps) does "
        f"not depend on the batch: {format_bytes(headroom.fixed_bytes)}. All else of the reserved peak is taken to "
        f"grow with it, and {format_share(MARGIN)} of what the program may take stays free. Reserved memory holds "
        "every instant's peak, those within the backward pass too.",
        "It is wrong where memory grows faster than the batch, where other steps than the recorded ones are larger "
        "(validation, another stage of a curriculum), and where the batch was chosen for what the model learns.",
    )
