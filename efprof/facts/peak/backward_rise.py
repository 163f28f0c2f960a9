"""How far memory rises within backward above where it began, which forward operations made it, and the evidence."""

from collections import Counter
from collections.abc import Iterable
from typing import Self

from efprof.facts.peak.live_memory import LiveMemory, LiveWindow, StageStretch, sites_of
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.model import Narrative, frozen_dataclass
from efprof.units import MIB, format_bytes, format_share

MAX_CHUNKS = 16
"""Sixteen parts leave a sixteenth of the memory; more win little, and each costs its own calls."""
CHUNK_REMAINDER = 0.1
"""Share of the rest of the peak to which an operation's own part is cut, by the same reason."""

MIN_JUMP_SHARE = 0.25
"""Of the window's peak. Measured: cell-by-cell RNN 4 %, CNN 9 %, ResNet 10 %, transformers with a vocabulary of 256 and
1,000 5 and 24 %; with a vocabulary of 8,000 and 20,000 48 and 45 %."""
MIN_JUMP_BYTES = 16 * MIB
"""Less is not what a run runs out of memory for."""
MIN_LINE_SHARE = 0.5
"""Of what backward had allocated at the peak: below it no one line is to blame."""
MIN_INNER_SHARE = 0.1
"""Of the peak: what only the operation itself needed. An ordinary layer's gradient is its neighbour's input, whatever
its size (MLPs 0 %, CNN and ResNet 7 %); cross-entropy holds two at once (12 to 24 %)."""
MAX_INCOMING_SHARE = 0.05
"""Of the line's own bytes: a layer that gets a large gradient cannot be split without it (LSTM 13 %, U-Net 28 %); one
that reduces to a number, such as a loss, gets almost none."""


Origin = tuple[str, tuple[str, ...]]
"""The user's line and the modules within it that an event belongs to."""


@frozen_dataclass
class Temporaries:
    """What backward allocated for one forward line, within one module, had alive at the peak and then released.

    Of `num_bytes`, `inner_bytes` were released by the same operation's backward: nobody else needed them.
    `incoming_bytes` is the gradient that came into the operation from what followed it in forward. `own_blocks` is what
    it allocates in both passes, in all steps of the window; `operand_blocks` are those of the size of its largest
    gradient that other forward lines made.
    """

    site: str
    module: str
    operation: str
    num_bytes: int
    inner_bytes: int
    incoming_bytes: int
    own_blocks: tuple[int, ...]
    operand_blocks: tuple[int, ...]

    @property
    def split_blocks(self) -> tuple[int, ...]:
        """What the operation makes, and what it is called on: all that exists in parts where the work does."""
        return self.own_blocks + self.operand_blocks


@frozen_dataclass
class BackwardJump:
    """The peak of the fullest window; the rest is empty where it does not lie in backward.

    `needed_bytes` were allocated in backward and outlive it: the gradients of parameters. The jump is the rest of
    the rise from `start_bytes`; `largest` is the operation that made most of it, `step` the one it lies in.
    """

    window: LiveWindow
    peak_bytes: int
    start_bytes: int = 0
    needed_bytes: int = 0
    temporary_bytes: int = 0
    largest: Temporaries | None = None
    step: int | None = None

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Look at the window whose peak is highest; raises NotRecorded without allocation windows."""
        window = max(run.get(LiveMemory).windows, key=lambda window: window.peak_bytes)
        stretch = window.stretch_of(window.peak_index)
        if stretch is None or stretch.stage != "backward":
            return cls(window=window, peak_bytes=window.peak_bytes)
        made = [block for block in window.alive_after(window.peak_index) if block >= stretch.first]
        needed = [block for block in made if window.released_at[block] >= stretch.end]
        temporary = sorted(set(made) - set(needed))
        return cls(
            window=window,
            peak_bytes=window.peak_bytes,
            start_bytes=int(window.live_bytes[stretch.first - 1]) if stretch.first else 0,
            needed_bytes=_bytes_of(window, needed),
            temporary_bytes=_bytes_of(window, temporary),
            step=stretch.step,
            largest=_largest(window, stretch, temporary, run.get(Sources)),
        )

    @property
    def jump_bytes(self) -> int:
        """The rise within backward, parameter gradients taken out."""
        return self.peak_bytes - self.needed_bytes - self.start_bytes

    @property
    def guilty(self) -> Temporaries | None:
        """The operation whose gradient makes the peak for no good reason."""
        made = self.largest
        is_guilty = (
            made is not None
            and self.jump_bytes >= max(MIN_JUMP_BYTES, MIN_JUMP_SHARE * self.peak_bytes)
            and made.num_bytes >= MIN_LINE_SHARE * self.temporary_bytes
            and made.inner_bytes >= MIN_INNER_SHARE * self.peak_bytes
            and made.incoming_bytes <= MAX_INCOMING_SHARE * made.num_bytes
        )
        return made if is_guilty else None

    def num_chunks(self, made: Temporaries) -> int:
        """Into how many parts to split the operation's work so that it no longer makes the peak.

        That is when its part is below the next highest peak, or a tenth of it where the rest of this one is that.
        """
        alive = set(self.window.alive_after(self.window.peak_index))
        own_bytes = _bytes_of(self.window, [block for block in made.split_blocks if block in alive])
        next_peak = self.window.peak_without(made.split_blocks, 1.0)
        room = max(next_peak - (self.peak_bytes - own_bytes), round(CHUNK_REMAINDER * next_peak), 1)
        return min(MAX_CHUNKS, max(2, -(-own_bytes // room)))

    def saved_bytes(self, blocks: tuple[int, ...], num_chunks: int | None) -> int:
        """What the window's peak falls by when these blocks hold one chunk at a time; None is chunks without end."""
        return self.peak_bytes - self.window.peak_without(blocks, 1 - 1 / num_chunks if num_chunks else 1.0)


def how_jump_is_known(jump: BackwardJump, blamed: Temporaries) -> Narrative:
    share = format_share(blamed.num_bytes / max(1, jump.temporary_bytes))
    return Narrative.of(
        "The largest batch that fits is set by one instant: when this line's gradient is computed. The gradient of "
        "a large result is as large as that, and here it exists more than once, beside all that forward saved.",
        "Every allocation and release of a window was replayed in order. Its peak lies in backward of step "
        f"{jump.step}; {share} of what backward had allocated then, and released before it ended, was for "
        "the operation that forward called on this line. Gradients of parameters "
        f"({format_bytes(jump.needed_bytes)}), which the optimizer needs, are not counted.",
        "The window counts from its own start: weights and optimizer state are not in it. It is wrong where the "
        "recorded steps are not typical, such as shorter sequences than later ones.",
    )


def _largest(window: LiveWindow, stretch: StageStretch, at_peak: list[int], sources: Sources) -> Temporaries | None:
    """Of the operation that has most of these blocks; None where the user has none."""
    events, released_at = window.events, window.released_at
    origins = [
        None if site is None else (site, event.modules)
        for site, event in zip(sites_of(window, sources), events, strict=True)
    ]
    sizes = Counter[Origin]()
    for block in at_peak:
        if (made_by := origins[block]) is not None:
            sizes[made_by] += events[block].num_bytes
    if not sizes:
        return None
    origin = site, modules = min(sizes, key=lambda one: (-sizes[one], one))
    there = [block for block in at_peak if origins[block] == origin]
    largest = max(there, key=lambda block: events[block].num_bytes)
    needed = {
        block
        for one in window.stretches
        if one.stage == "backward"
        for block in range(one.first, one.end)
        if released_at[block] >= one.end
    }
    made = [block for block, event in enumerate(events) if event.num_bytes > 0 and block not in needed]
    own = [block for block in made if origins[block] == origin]
    incoming = [
        block
        for block in range(stretch.first, stretch.end)
        if events[block].num_bytes > 0 and released_at[block] < stretch.end
        if origins[block] != origin and origins[released_at[block]] == origin
    ]
    return Temporaries(
        site=site,
        module=modules[-1] if modules else "",
        operation=events[largest].operation,
        num_bytes=sizes[origin],
        inner_bytes=_bytes_of(window, [block for block in there if origins[released_at[block]] == origin]),
        incoming_bytes=_bytes_of(window, incoming),
        own_blocks=tuple(own),
        operand_blocks=tuple(
            block
            for block in made
            if events[block].num_bytes == events[largest].num_bytes
            if not events[block].is_backward and origins[block] not in (None, origin)
        ),
    )


def _bytes_of(window: LiveWindow, blocks: Iterable[int]) -> int:
    return sum(window.events[block].num_bytes for block in blocks)
