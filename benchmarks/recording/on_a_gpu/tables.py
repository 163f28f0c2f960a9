"""What was found, as Markdown: a table for each question, and what did not run."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.recording.on_a_gpu.trainings import Outcome, Told
from efprof.units import GIB

NOTHING = ["Nothing was measured.", ""]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """One training bare and recorded; `quiet` are the steps that no window touches."""

    bare: Outcome
    recorded: Outcome
    quiet: Sequence[int] = ()

    @property
    def told(self) -> tuple[Told, Told] | None:
        """What both told; None where one of them failed."""
        if self.bare.told is None or self.recorded.told is None:
            return None
        return self.bare.told, self.recorded.told


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """The peak of reserved bytes under these settings of the allocator, as efprof says and as a process had it."""

    settings: str
    likely: int
    low: int
    high: int
    measured: Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimated:
    """What a recording on the CPU says that this batch needs on a GPU, and what it needed."""

    batch: int
    likely: int
    low: int
    high: int
    in_use: int
    measured: Outcome


@dataclass(kw_only=True, slots=True)
class Found:
    """All that is known so far."""

    pairs: list[Pair] = field(default_factory=list)
    deterministic: list[Pair] = field(default_factory=list)
    predicted: list[Predicted] = field(default_factory=list)
    estimated: list[Estimated] = field(default_factory=list)


def markdown(found: Found, outcomes: Sequence[Outcome], machine: str) -> str:
    """The whole page."""
    lines = ["# One GPT on a real GPU", "", machine, "", *_training_line(outcomes)]
    lines += ["## Bare and recorded, by turns", "", *_pairs(found.pairs)]
    lines += ["## Losses with deterministic algorithms", "", *_deterministic(found.deterministic)]
    lines += ["## Other settings of the allocator: predicted from one snapshot, and measured", ""]
    lines += _predictions(found.predicted)
    lines += ["## Estimated from a recording on the CPU, and measured", "", *_estimates(found.estimated)]
    lines += ["## What failed", "", *_failures(outcomes)]
    return "\n".join(lines)


def _training_line(outcomes: Sequence[Outcome]) -> list[str]:
    outcome = next((one for one in outcomes if one.told), None)
    if outcome is None or outcome.told is None:
        return []
    size, millions = outcome.training.size, outcome.told.num_parameters / 1e6
    return [
        f"{millions:.1f} million parameters: {size.layers} layers of {size.width}, a context of {size.context}, "
        f"{size.vocabulary:,} tokens. bf16 autocast, activation checkpointing, fused AdamW; batch {size.batch}.",
        "",
    ]


def _pairs(pairs: Sequence[Pair]) -> list[str]:
    rows = [
        "| pair | bare step, ms | recorded, ms | ratio | bare loop, s | recorded, s | bare peak, allocated / reserved, "
        "GiB | recorded peak, GiB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    ratios, losses = list[float](), list[list[float]]()
    for number, pair in enumerate(pairs, start=1):
        if pair.told is None:
            continue
        bare, recorded = pair.told
        quiet = pair.quiet or range(len(bare.step_ms))
        ratios.append(statistics.median(recorded.step_ms[step] / bare.step_ms[step] for step in quiet))
        losses += [bare.losses, recorded.losses]
        medians = [statistics.median(told.step_ms[step] for step in quiet) for told in (bare, recorded)]
        rows.append(
            f"| {number} | {medians[0]:.2f} | {medians[1]:.2f} | {ratios[-1]:.4f} | {bare.loop_s:.2f} "
            f"| {recorded.loop_s:.2f} | {_peaks(bare)} | {_peaks(recorded)} |"
        )
    if not ratios:
        return NOTHING
    spread = f"from {min(ratios):.4f} to {max(ratios):.4f} in {len(ratios)} pairs"
    return [
        *rows,
        "",
        f"A recorded step takes {statistics.median(ratios):.4f} times as long as a bare one, {spread}: medians over "
        "the same steps of both, without windows and the two steps after each. The loop's time has the windows in it.",
        "",
        *(["Losses are compared with those of the first bare process.", ""] if len(losses) > 1 else []),
        *(f"- {_name_of(place)}: {_difference(one, losses[0])}" for place, one in enumerate(losses) if place),
        "",
    ]


def _name_of(place: int) -> str:
    return f"{'recorded' if place % 2 else 'bare'} {place // 2 + 1}"


def _difference(losses: Sequence[float], others: Sequence[float]) -> str:
    num_equal = sum(one == other for one, other in zip(losses, others, strict=False))
    largest = max((abs(one / other - 1) for one, other in zip(losses, others, strict=False) if other), default=0.0)
    return f"{num_equal} of {len(others)} losses are equal to the last bit; they differ by at most {largest:.1e}"


def _deterministic(pairs: Sequence[Pair]) -> list[str]:
    lines = []
    for pair in pairs:
        if pair.told is not None:
            lines += [f"Bare and recorded: {_difference(pair.told[1].losses, pair.told[0].losses)}.", ""]
    return lines or NOTHING


def _predictions(predicted: Sequence[Predicted]) -> list[str]:
    rows = ["| settings | predicted, GiB | band | measured | error |", "| --- | --- | --- | --- | --- |"]
    for one in predicted:
        band = f"{_gib(one.low)} to {_gib(one.high)}"
        told = one.measured.told
        real = "failed | " if told is None else f"{_gib(told.peak_reserved_bytes)} | {_error(one.likely, told)}"
        rows.append(f"| {one.settings or 'default'} | {_gib(one.likely)} | {band} | {real} |")
    return [*rows, ""] if predicted else NOTHING


def _estimates(estimated: Sequence[Estimated]) -> list[str]:
    rows = [
        "| batch | estimated reserved, GiB | band | measured | error | estimated in use | measured allocated |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in estimated:
        told, band = one.measured.told, f"{_gib(one.low)} to {_gib(one.high)}"
        real = (
            ("failed", "", "")
            if told is None
            else (
                _gib(told.peak_reserved_bytes),
                _error(one.likely, told),
                _gib(told.peak_allocated_bytes),
            )
        )
        rows.append(
            f"| {one.batch} | {_gib(one.likely)} | {band} | {real[0]} | {real[1]} | {_gib(one.in_use)} | {real[2]} |"
        )
    return [*rows, ""] if estimated else NOTHING


def _failures(outcomes: Sequence[Outcome]) -> Iterator[str]:
    failed = [one for one in outcomes if one.error]
    if not failed:
        yield from ("Nothing.", "")
    for one in failed:
        yield from (f"- {one.training.name}", "", "```", one.error, "```", "")


def _peaks(told: Told) -> str:
    return f"{_gib(told.peak_allocated_bytes)} / {_gib(told.peak_reserved_bytes)}"


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / GIB:.3f}"


def _error(predicted: int, told: Told) -> str:
    return f"{predicted / told.peak_reserved_bytes - 1:+.2%}" if told.peak_reserved_bytes else "not measured"
