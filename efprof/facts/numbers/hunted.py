"""What a second run has shown of the first NaN or Inf: the operation that made it, and what that was given."""

import math
import re
import statistics
from collections.abc import Iterator
from typing import Self

from efprof.artifacts.hunts import Hunt, Operand, read_hunt
from efprof.artifacts.hunts import Origin as TracedOrigin
from efprof.facts.run.run import Run
from efprof.facts.source.sources import line_at
from efprof.model import NotRecorded, Table, frozen_dataclass

Origin = TracedOrigin
"""The operation that made the first NaN or Inf, its line, and what it was given."""


@frozen_dataclass
class Hunted:
    """`hunt` as it was kept; its `origin` is None unless one was seen after equal losses."""

    hunt: Hunt

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where nobody has hunted in this run."""
        hunt = read_hunt(run.folder)
        if hunt is None:
            raise NotRecorded(f"nobody has run it again to see where its NaN is born: 'efprof hunt {run.folder.name}'.")
        return cls(hunt=hunt)

    @property
    def origin(self) -> Origin | None:
        return self.hunt.origin

    @property
    def grown_buffer(self) -> Operand | None:
        """One that had grown beyond all measure, while no parameter had; of half precision, beyond a product's room."""
        origin = self.hunt.origin
        if any(one.is_a == "parameter" for one in self.hunt.grown):
            return None
        limit = HALF_LARGE if origin is not None and _is_half(origin) else BEYOND_MEASURE
        operands = origin.operands if origin is not None else []
        return next((one for one in (*self.hunt.grown, *operands) if one.is_a == "buffer" and _most(one) > limit), None)

    @property
    def usual_norm(self) -> float | None:
        """The median norm of all gradients in the passes before the last ones; None where too few are known."""
        earlier = self._totals[:-LAST_PASSES]
        return statistics.median(earlier) if len(earlier) >= MIN_PASSES else None

    @property
    def explosion(self) -> float | None:
        """How many times that the norm had reached, where it is an explosion."""
        usual, last = self.usual_norm, self._totals[-LAST_PASSES:]
        ratio = max(last, default=0.0) / usual if usual else 0.0
        return ratio if ratio > EXPLOSION else None

    @property
    def first_to_explode(self) -> tuple[str, float] | None:
        """The parameter whose gradient's norm left its usual measure first, and how many times that it had reached."""
        found = []
        for name, norms in self.hunt.norms.items():
            values = [one if math.isfinite(one) else 0.0 for one in map(float, norms)]
            usual = statistics.median(values)
            beyond = [at for at, one in enumerate(values) if usual and one > EXPLOSION * usual]
            if beyond:
                found.append((beyond[0], -max(values) / usual, name))
        return (min(found)[2], -min(found)[1]) if found else None

    @property
    def _totals(self) -> list[float]:
        rows = zip(*(map(float, norms) for norms in self.hunt.norms.values()), strict=True)
        totals = [math.sqrt(sum(one * one for one in row)) for row in rows]
        return [one for one in totals if math.isfinite(one)]


def hunted_sentence(run: Run, hunt: Hunt) -> str:
    """Of a hunt that is over, in one sentence or two."""
    if hunt.origin is None:
        return f"{hunt.verdict}: {hunt.why}."
    return f"{_place(run, hunt.origin.site, hunt.origin.library_site)}: {sentence_of(hunt.origin)}"


def sentence_of(origin: Origin) -> str:
    """What the operation made of what, without its line."""
    if origin.kind == "given":
        one = origin.operands[0]
        what = "NaN" if one.num_nan else "Inf"
        count = f"{one.num_nan + one.num_inf:,} of {one.num_elements:,}"
        return f"It is given {_called(one)}, which is {what} in {count} places."
    if origin.kind == "literal":
        number = next((str(one) for one in origin.scalars if not math.isfinite(float(one))), "NaN or Inf")
        return f"`{forward_name(origin)}` is given the number {number}, which is no tensor's."
    name = f"`{forward_name(origin)}`"
    name = (
        f"The update of `{origin.optimizer}`"
        if origin.optimizer
        else f"The gradient of {name}"
        if origin.node
        else name
    )
    telling = _telling(origin)
    of = " and ".join(f"{_called(one)}, {_numbers(one, has_pole=_has_pole(origin))}" for one in telling) or "no number"
    at = " where a mask hides it" if origin.is_masked else ""
    return f"{name} makes {'NaN' if origin.kind == 'nan' else 'Inf'}{at}: it is given {of}."


def why_of(hunted: Hunted, mechanism: str) -> str:
    """What made it; of gradients that exploded which did so first, of a buffer that grew what it had reached."""
    assert hunted.origin is not None
    if mechanism == "explosion" and (first := hunted.first_to_explode) is not None:
        name, ratio = first
        return f"Gradients exploded, that of `{name}` first, to {float(f'{ratio:.2g}'):,.6g} times its usual norm."
    if (buffer := hunted.grown_buffer) is not None and buffer not in hunted.origin.operands:
        return f"Buffer `{buffer.name}` had grown to {_most(buffer):.2g}. {sentence_of(hunted.origin)}"
    return sentence_of(hunted.origin)


def tables_of(run: Run) -> tuple[Table, ...]:
    """What the operation was given, and how gradients exploded before; nothing where no origin was seen."""
    hunted = run.find(Hunted)
    if hunted is None or (origin := hunted.origin) is None:
        return ()
    columns = {"": "", "tensor": "", "type": "", "least": "", "largest": "", "zero": "count", "NaN or Inf": "count"}
    made = [*filter(None, [origin.result])]
    rows = [
        (
            "given" if one not in made else "made", one.name or "not named", f"{one.dtype} {one.shape}",
            _short(one.low), _short(one.high), one.num_zero,
            one.num_nan + one.num_inf, ":".join(one.made_at.split(":")[:2]),
        )
        for one in (*origin.operands, *made)
    ]  # fmt: skip
    title = "What it was given, and what it made, in the second run"
    return Table.of(title, columns | {"written at": ""}, rows), *_norms_of(hunted)


def how_it_is_known(run: Run, hunted: Hunted) -> Iterator[str]:
    """Of a second run that has shown an origin, in sentences."""
    hunt, origin = hunted.hunt, hunted.origin
    assert origin is not None
    yield (
        f"The command ran again: {hunt.num_equal:,} losses were equal to the recorded ones, and step {hunt.step:,} "
        "went bad again."
    )
    if origin.module:
        yield f"The module was `{origin.module}`."
    if origin.library_site and origin.site:
        yield f"A library called it at {':'.join(origin.library_site.split(':')[:2])}."
    if hunt.is_compiled:
        yield "Compiled code was traced as eager code."
    lines = dict.fromkeys(_place(run, hop.site, "") for hop in hunt.chain[1:] if hop.site)
    if lines:
        yield f"It went on by {', '.join(list(lines)[:MAX_LINES])}."


def _norms_of(hunted: Hunted) -> Iterator[Table]:
    """Where gradients exploded, those of the parameters that did so most."""
    if hunted.explosion is None:
        return
    rows = list[tuple[str | float, ...]]()
    for name, norms in hunted.hunt.norms.items():
        values = [one for one in map(float, norms) if math.isfinite(one)]
        if len(values) >= MIN_PASSES and (usual := statistics.median(values)):
            times = f"{float(f'{max(values) / usual:.2g}'):,.6g}"
            rows.append((name, _short(usual), *map(_short, values[-LAST_PASSES:]), times))
    columns = {"gradient of": "", "usual norm": "", **{f"{LAST_PASSES - at} before": "" for at in range(LAST_PASSES)}}
    most = sorted(rows, key=lambda row: -float(str(row[-1]).replace(",", "")))[:MAX_LINES]
    yield Table.of("Norms of the gradients in the passes before", columns | {"times the usual": ""}, most)


def _place(run: Run, site: str | None, library: str) -> str:
    return str(line_at(run, site)) if site else ":".join(library.split(":")[:2]) or "a line that is not known"


def _telling(origin: Origin) -> list[Operand]:
    """What is not finite, or zero where that matters, else what is largest; a mask tells nothing."""
    numbers = [one for one in origin.operands if one.dtype != "bool"]
    found = [one for one in numbers if one.num_nan or one.num_inf or (one.num_zero and _has_pole(origin))]
    return found[-1:] or sorted(numbers, key=_most)[-1:]


def _has_pole(origin: Origin) -> bool:
    return forward_name(origin).rstrip("0123456789_") in POLES_AT_ZERO


def _called(one: Operand) -> str:
    return f"`{one.name}`" if one.name else f"{one.dtype} {one.shape}" if one.shape else f"one {one.dtype} number"


def _numbers(one: Operand, *, has_pole: bool) -> str:
    if one.num_nan or one.num_inf:
        return f"of which {one.num_nan + one.num_inf:,} of {one.num_elements:,} are not finite"
    if not one.num_elements:
        return "which is empty"
    if one.num_zero == one.num_elements:
        return "0 everywhere" if one.shape else "which is 0"
    if one.num_zero and has_pole:
        return f"0 in {one.num_zero:,} of {one.num_elements:,} places"
    return f"{_short(one.low)} to {_short(one.high)}" if one.low != one.high else _short(one.low)


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


MAX_LINES = 6
POLES_AT_ZERO = frozenset({
    "div", "reciprocal", "log", "sqrt", "rsqrt", "pow", "norm", "linalg_vector_norm", "lgamma", "digamma", "addcdiv",
    "foreach_addcdiv", "foreach_div", "weight_norm_interface", "acos", "asin", "remainder", "floor_divide",
})  # fmt: skip
"""Operations that, or whose slopes, are infinite where a number they are given is 0."""
EXPLOSION = 10.0
"""Norm over the median before: Megatron calls ten times the usual an explosion."""
LAST_PASSES, MIN_PASSES = 3, 5
HALF_LARGE = 1e3
"""In float16, a product of two such numbers has no room."""
BEYOND_MEASURE = 1e9
"""In float32: that the square of more overflows only shows what went wrong before."""


def is_beyond_measure(origin: Origin) -> bool:
    """Whether what it was given is itself the fault; in float16 the operation is, whose result has no room."""
    if _is_half(origin) or origin.kind == "given":
        return False
    return any(_most(one) > BEYOND_MEASURE and not _is_mask(one) for one in origin.operands)


def _is_mask(one: Operand) -> bool:
    """Whether it is filled with the most negative number, and the rest is usual."""
    return one.low is not None and one.low < -BEYOND_MEASURE and (one.high or 0.0) < BEYOND_MEASURE


def _most(one: Operand) -> float:
    return max(abs(one.low or 0.0), abs(one.high or 0.0)) if one.dtype != "bool" else 0.0


def _is_half(origin: Origin) -> bool:
    return origin.result is not None and origin.result.dtype == "float16"


def forward_name(origin: Origin) -> str:
    """`softmax` for `_softmax`; within backward `sqrt` for `SqrtBackward0`."""
    if not origin.node:
        return origin.operation.strip("_")
    name = re.sub(r"Backward\d*$", "", origin.node)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def dtype_of(origin: Origin) -> str:
    return origin.result.dtype if origin.result is not None else "float32"
