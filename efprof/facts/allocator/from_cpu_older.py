"""What a CPU program had before its first allocation window, and the blocks that this may have been in.

A window shows no older block. Their total is told by the memory read at the window's first boundary, but on a CPU that
is all that the C allocator has handed out: 110 MiB for a process that does no more than import torch, and every
dataset. So two totals are told: what the gradients and the optimizer's first step are evidence of, and all of it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from efprof.artifacts.steps import StepRecord
from efprof.facts.allocator.from_cpu import Passage
from efprof.facts.live_memory import LiveWindow
from efprof.units import MIB

UNEVEN_BYTES: Final = 11 * MIB + 512
"""The size of block that wastes most: it gets a segment of 12 MiB for itself, of which less than 1 MiB is over, which
is not split off. Larger ones waste a smaller share, smaller ones leave what others can use."""

MOST_COPIES: Final = 8
"""Of the parameters, that the optimizer's state is taken to consist of: Adam keeps 2. A longer history is one block."""

NEARLY: Final = 0.05
"""Of the parameters: by up to 1 % of them the rise missed a multiple in four programs with 2 to 96 MiB of them; where
they are smaller, by what else a step leaves, some 50 KiB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OlderMemory:
    """Bytes from before the windows.

    `boundary_bytes` is all that was in use as the first window began; None where that was not read. The parameters
    are as large as their gradients were; `gradient_bytes` are those of gradients that are kept and not made anew in
    each step; `state_bytes` is by how much memory rose in the optimizer's first step. `carried_bytes` is what a window
    leaves, and so found as it began: a part of `boundary_bytes`, but played, not placed.
    """

    parameter_bytes: int
    gradient_bytes: int
    state_bytes: int
    carried_bytes: int
    boundary_bytes: int | None
    sizes: tuple[int, ...]
    """Of the parameters' blocks; they sum to `parameter_bytes`."""

    @property
    def seen_bytes(self) -> int:
        """What there is evidence of, besides what the windows themselves show."""
        return self.parameter_bytes + self.gradient_bytes + self.state_bytes

    @property
    def rest_bytes(self) -> int:
        """What there may be besides: frozen weights, but also all that would stay on the host."""
        if self.boundary_bytes is None:
            return 0
        return max(0, self.boundary_bytes - self.seen_bytes - self.carried_bytes)

    @property
    def gradient_blocks(self) -> list[int]:
        """As many as there are parameters' blocks, where they are kept."""
        return _copies(self.sizes, self.gradient_bytes)

    @property
    def state_blocks(self) -> list[int]:
        """The optimizer's state: for each parameter tensors as large as itself."""
        return _copies(self.sizes, self.state_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption:
    """One way that it may be, where no recording tells: the sizes in bytes and the order that `play` takes.

    On CUDA torch's optimizers work on all parameters at once, for which some need as much again for a moment.
    """

    name: str
    first: tuple[int, ...]
    at_optimizer: tuple[int, ...]
    in_optimizer: tuple[int, ...]
    returns_early: bool


def older_memory(
    records: Sequence[StepRecord], windows: Sequence[LiveWindow], passages: Sequence[Passage]
) -> OlderMemory:
    """What the steps and the windows tell of the time before the first window."""
    made = max((passage.gradient_bytes for passage in passages), key=sum, default=())
    parameter_bytes = max((record.gradient_bytes or 0 for record in records), default=0) or sum(made)
    is_seen = parameter_bytes / 2 <= sum(made) <= parameter_bytes
    sizes = [*made, parameter_bytes - sum(made)] if is_seen else [parameter_bytes]
    return OlderMemory(
        parameter_bytes=parameter_bytes,
        gradient_bytes=parameter_bytes if sum(made) < parameter_bytes / 2 else 0,
        state_bytes=_whole_copies(_first_rise(records, windows), parameter_bytes),
        carried_bytes=passages[-1].left_bytes if passages else 0,
        boundary_bytes=_boundary(records, windows[0]) if windows else None,
        sizes=tuple(size for size in sizes if size),
    )


def assumptions_about(older: OlderMemory) -> tuple[Assumption, ...]:
    """The likely one first, the one with all that the process held last: what no recording tells, from end to end."""
    first, states = [*older.sizes, *older.gradient_blocks], older.state_blocks
    whole = [older.parameter_bytes, older.gradient_bytes]
    return (
        _assumption("as the gradients tell", first, states),
        _assumption("a step's tensors are returned as the next one begins", first, states, returns_early=True),
        _assumption("the optimizer takes all parameters at once", first, states, in_optimizer=older.sizes),
        _assumption("parameters and states lie in one piece each", whole, [older.state_bytes]),
        _assumption("they lie in the pieces that waste most", uneven(sum(whole)), uneven(older.state_bytes)),
        _assumption(
            "all that the process held is there as well",
            [*first, *uneven(older.rest_bytes)],
            states,
            in_optimizer=older.sizes,
        ),
    )


def _assumption(
    name: str,
    first: Iterable[int],
    at_optimizer: Iterable[int],
    *,
    in_optimizer: Iterable[int] = (),
    returns_early: bool = False,
) -> Assumption:
    return Assumption(
        name=name,
        first=tuple(size for size in first if size),
        at_optimizer=tuple(size for size in at_optimizer if size),
        in_optimizer=tuple(in_optimizer),
        returns_early=returns_early,
    )


def uneven(num_bytes: int) -> list[int]:
    """Blocks of the size that wastes most."""
    num_blocks, rest = divmod(num_bytes, UNEVEN_BYTES)
    return [UNEVEN_BYTES] * num_blocks + ([rest] if rest else [])


def _copies(sizes: Sequence[int], num_bytes: int) -> list[int]:
    """The sizes again and again, as often as they fit; what is over in one block."""
    each = sum(sizes)
    num_copies = min(num_bytes // each, MOST_COPIES) if each else 0
    rest = num_bytes - num_copies * each
    return list(sizes) * num_copies + ([rest] if rest else [])


def _first_rise(records: Sequence[StepRecord], windows: Iterable[LiveWindow]) -> int:
    """By how much memory rose from the first step's gradients to its end: what the optimizer made for itself.

    A window that shows that step shows it as well; and its collector takes memory meanwhile.
    """
    first = records[0] if records else None
    shown = {stretch.step for window in windows for stretch in window.stretches}
    if first is None or first.step in shown:
        return 0
    rise, before = 0, None
    for here in first.memory:
        if here.boundary == "post_backward":
            before = here.allocated_bytes
        elif here.boundary == "post_optimizer_step" and before is not None:
            rise, before = rise + here.allocated_bytes - before, None
    return max(0, rise)


def _whole_copies(num_bytes: int, parameter_bytes: int) -> int:
    """What is nearly a multiple of the parameters is one: the heap's total rises and falls by other things as well."""
    num_copies = round(num_bytes / parameter_bytes) if parameter_bytes else 0
    whole = num_copies * parameter_bytes
    return whole if abs(num_bytes - whole) <= NEARLY * parameter_bytes else num_bytes


def _boundary(records: Iterable[StepRecord], window: LiveWindow) -> int | None:
    """What was there as the window began: what its first boundary tells, less what it allocated itself up to then."""
    name = window.name.replace("allocations-", "trace-").removesuffix(".parquet")
    record = next((record for record in records if record.window == name and record.memory), None)
    if record is None:
        return None
    here = record.memory[0]
    instant = record.started_ns + round(here.at_us * 1000)
    index = bisect_right([event.time_ns for event in window.events], instant) - 1
    return max(0, here.allocated_bytes - (int(window.live_bytes[index]) if index >= 0 else 0))
