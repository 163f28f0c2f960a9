"""How far memory rises within backward above where it began, which forward operations made it, and the evidence."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

from efprof.facts.peak.live_memory import LiveMemory, LiveWindow, StageStretch, sites_of
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources, place_of
from efprof.model import Bar, MemoryMap, Narrative, Numbers
from efprof.units import MIB, format_bytes, format_share

MAX_CHUNKS = 16
"""Sixteen parts leave a sixteenth of the memory; more win little, and each costs its own calls."""
CHUNK_REMAINDER = 0.1
"""Share of the rest of the peak to which an operation's own part is cut, by the same reason."""

MAX_CROSSING = 0.125
"""The largest tensor that enters or leaves a group of lines over the largest they make: ordinary layers' inputs are as
large as what they make of them; a matrix of all pairs is many times larger than what it is made from and for."""

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

MAX_BARS = 8


class _Origin(NamedTuple):
    """The user's line and the modules within it that an event belongs to."""

    site: str
    modules: tuple[str, ...]

    @property
    def place(self) -> tuple[str, str, tuple[str, ...]]:
        """The function it lies in, within the same modules."""
        file, _, function = self.site.split(":", 2)
        return file, function, self.modules


@dataclass(frozen=True, kw_only=True, slots=True)
class Temporaries:
    """What backward allocated for one forward line, within one module, had alive at the peak and then released.

    Of `num_bytes`, `inner_bytes` were released by the same operation's backward: nobody else needed them.
    `incoming_bytes` is the gradient that came into the operation from what followed it in forward. `blocks` are all
    such allocations of the window, in its other steps too; `forward_blocks` those that its own forward made,
    `operand_blocks` those of the size of its largest gradient that other forward lines made.
    """

    site: str
    module: str
    operation: str
    num_bytes: int
    inner_bytes: int
    incoming_bytes: int
    blocks: tuple[int, ...]
    forward_blocks: tuple[int, ...]
    operand_blocks: tuple[int, ...]

    @property
    def own_blocks(self) -> tuple[int, ...]:
        """What the operation makes, in forward and backward."""
        return self.blocks + self.forward_blocks

    @property
    def split_blocks(self) -> tuple[int, ...]:
        """That, and what it is called on: all that exists in parts when the work is done in parts."""
        return self.own_blocks + self.operand_blocks


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardJump:
    """The peak of the fullest window; the rest is empty where it does not lie in backward.

    `needed_bytes` were allocated in backward and outlive it: the gradients of parameters. The jump is the rest of
    the rise from `start_bytes`; `temporaries` are what made it, most bytes first;
    `joined` is what all lines of one function made that hand tensors to each other and none as large to anybody else,
    such as scores, softmax and weighted sum of an attention; its site is the line that reached the peak.
    """

    window: LiveWindow
    stretch: StageStretch | None
    peak_bytes: int
    start_bytes: int = 0
    needed_bytes: int = 0
    temporary_bytes: int = 0
    temporaries: tuple[Temporaries, ...] = ()
    joined: Temporaries | None = None

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Look at the window whose peak is highest; raises NotRecorded without allocation windows."""
        window = max(run.get(LiveMemory).windows, key=lambda window: window.peak_bytes)
        stretch = window.stretch_of(window.peak_index)
        if stretch is None or stretch.stage != "backward":
            return cls(window=window, stretch=stretch, peak_bytes=window.peak_bytes)
        made = [block for block in window.alive_after(window.peak_index) if block >= stretch.first]
        needed = [block for block in made if window.released_at[block] >= stretch.end]
        temporary = sorted(set(made) - set(needed))
        temporaries, joined = _temporaries(window, stretch, temporary, run.get(Sources))
        return cls(
            window=window,
            stretch=stretch,
            peak_bytes=window.peak_bytes,
            start_bytes=int(window.live_bytes[stretch.first - 1]) if stretch.first else 0,
            needed_bytes=_bytes_of(window, needed),
            temporary_bytes=_bytes_of(window, temporary),
            temporaries=temporaries,
            joined=joined,
        )

    @property
    def jump_bytes(self) -> int:
        """The rise within backward, parameter gradients taken out."""
        return self.peak_bytes - self.needed_bytes - self.start_bytes

    @property
    def guilty(self) -> Temporaries | None:
        """What makes the peak for no good reason: one line's gradient, or that of lines that work together."""
        suspects = [*self.temporaries[:1], *([self.joined] if self.joined else [])]
        return next((made for made in suspects if self._is_fault(made)), None)

    def _is_fault(self, made: Temporaries) -> bool:
        return (
            self.jump_bytes >= max(MIN_JUMP_BYTES, MIN_JUMP_SHARE * self.peak_bytes)
            and made.num_bytes >= MIN_LINE_SHARE * self.temporary_bytes
            and made.inner_bytes >= MIN_INNER_SHARE * self.peak_bytes
            and made.incoming_bytes <= MAX_INCOMING_SHARE * made.num_bytes
        )

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


def peak_map(run: Run, jump: BackwardJump, blamed: Temporaries) -> MemoryMap:
    sites, events = sites_of(jump.window, run.get(Sources)), jump.window.events
    sizes: Counter[tuple[str, str]] = Counter()
    for block in jump.window.alive_after(jump.window.peak_index):
        site = sites[block]
        place = "no line of yours" if site is None else place_of(site)
        sizes["backward" if events[block].is_backward else "forward", place] += events[block].num_bytes
    bars = [
        Bar(
            label=f"{place} ({stage})",
            num_bytes=num_bytes,
            is_highlighted=stage == "backward" and blamed.site.startswith(f"{place}:"),
        )
        for (stage, place), num_bytes in sizes.most_common(MAX_BARS)
    ]
    return MemoryMap(title="What is alive at the peak", bars=tuple(bars))


def jump_numbers(jump: BackwardJump, blamed: Temporaries) -> Numbers:
    return Numbers.of(
        "The peak of the recorded window",
        ("peak", jump.peak_bytes, "bytes"),
        ("alive when backward began", jump.start_bytes, "bytes"),
        ("gradients of parameters (needed)", jump.needed_bytes, "bytes"),
        ("jump", jump.jump_bytes, "bytes"),
        ("of this line", blamed.num_bytes, "bytes"),
    )


def how_jump_is_known(jump: BackwardJump, blamed: Temporaries) -> Narrative:
    assert jump.stretch is not None
    share = format_share(blamed.num_bytes / max(1, jump.temporary_bytes))
    return Narrative.of(
        "The largest batch that fits is set by one instant: when this line's gradient is computed. The gradient of "
        "a large result is as large as that, and here it exists more than once, beside all that forward saved.",
        "Every allocation and release of a window was replayed in order. Its peak lies in backward of step "
        f"{jump.stretch.step}; {share} of what backward had allocated then, and released before it ended, was for "
        "the operation that forward called on this line. Gradients of parameters "
        f"({format_bytes(jump.needed_bytes)}), which the optimizer needs, are not counted.",
        "The window counts from its own start: weights and optimizer state are not in it. It is wrong where the "
        "recorded steps are not typical, such as shorter sequences than later ones.",
    )


def _temporaries(
    window: LiveWindow, stretch: StageStretch, at_peak: list[int], sources: Sources
) -> tuple[tuple[Temporaries, ...], Temporaries | None]:
    origins = [
        None if site is None else _Origin(site, event.modules)
        for site, event in zip(sites_of(window, sources), window.events, strict=True)
    ]
    bounds = [(one.first, one.end) for one in window.stretches if one.stage == "backward"]
    needed = {block for first, end in bounds for block in range(first, end) if window.released_at[block] >= end}
    by_origin: dict[_Origin, list[int]] = {}
    for block, (event, origin) in enumerate(zip(window.events, origins, strict=True)):
        if event.num_bytes > 0 and block not in needed and origin is not None:
            by_origin.setdefault(origin, []).append(block)
    alive = set(at_peak)
    there = {origin: [block for block in blocks if block in alive] for origin, blocks in by_origin.items()}
    found = {origin: blocks for origin, blocks in there.items() if blocks}
    backward = _Backward(window=window, stretch=stretch, origins=origins, by_origin=by_origin)
    made = [backward.made(blocks, origin, frozenset({origin})) for origin, blocks in found.items()]
    ordered = tuple(sorted(made, key=lambda one: (-one.num_bytes, one.site, one.module)))
    return ordered, backward.joined(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Backward:
    """One pass: whose each event of the window is, and of each what does not outlive the pass that it was made in."""

    window: LiveWindow
    stretch: StageStretch
    origins: list[_Origin | None]
    by_origin: dict[_Origin, list[int]]

    def joined(self, at_peak: dict[_Origin, list[int]]) -> Temporaries | None:
        """The lines of the function that reached the peak; None where a large tensor enters or leaves them."""
        reached = self.origins[self.window.peak_index]
        if reached is None:
            return None
        group = frozenset(origin for origin in self.by_origin if origin.place == reached.place)
        blocks = [block for origin, blocks in at_peak.items() if origin in group for block in blocks]
        leaving = [
            block
            for block in self._made_by(group)
            if self.stretch.first <= block < self.stretch.end
            if self.origins[self.window.released_at[block]] not in group
        ]
        events = self.window.events
        crossing = max((events[block].num_bytes for block in (*leaving, *self._entering(group))), default=0)
        if not blocks or crossing > MAX_CROSSING * max(events[block].num_bytes for block in blocks):
            return None
        return self.made(blocks, reached, group)

    def made(self, at_peak: list[int], blamed: _Origin, group: frozenset[_Origin]) -> Temporaries:
        """What the lines of `group` made, known by the line `blamed` of them."""
        window, events, origins, released_at = self.window, self.window.events, self.origins, self.window.released_at
        of_blamed = (block for block in at_peak if origins[block] == blamed)
        largest = max(of_blamed, key=lambda block: events[block].num_bytes)
        incoming = [
            block
            for block in range(self.stretch.first, self.stretch.end)
            if events[block].num_bytes > 0 and released_at[block] < self.stretch.end
            if origins[block] not in group and origins[released_at[block]] in group
        ]
        own = self._made_by(group)
        others = (block for origin, blocks in self.by_origin.items() if origin not in group for block in blocks)
        as_large = (block for block in others if events[block].num_bytes == events[largest].num_bytes)
        return Temporaries(
            site=blamed.site,
            module=blamed.modules[-1] if blamed.modules else "",
            operation=events[largest].operation,
            num_bytes=_bytes_of(window, at_peak),
            inner_bytes=_bytes_of(window, [block for block in at_peak if origins[released_at[block]] in group]),
            incoming_bytes=_bytes_of(window, incoming),
            blocks=tuple(sorted(block for block in own if events[block].is_backward)),
            forward_blocks=tuple(sorted(block for block in own if not events[block].is_backward)),
            operand_blocks=tuple(block for block in as_large if not events[block].is_backward),
        )

    def _entering(self, group: frozenset[_Origin]) -> list[int]:
        """What other forward lines had made, and was alive, when the group began."""
        events, own = self.window.events, set(self._made_by(group))
        began = min((block for block in own if not events[block].is_backward), default=0)
        alive = self.window.alive_after(began - 1) if began else []
        return [block for block in alive if block not in own and not events[block].is_backward]

    def _made_by(self, group: frozenset[_Origin]) -> list[int]:
        return [block for origin in group for block in self.by_origin[origin]]


def _bytes_of(window: LiveWindow, blocks: Iterable[int]) -> int:
    return sum(window.events[block].num_bytes for block in blocks)
