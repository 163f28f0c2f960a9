"""What a second run has shown of the first NaN or Inf: the operation that made it, and what that was given."""

import re
from typing import Self

from efprof.artifacts.hunts import Hunt, Operand, read_hunt
from efprof.artifacts.hunts import Origin as TracedOrigin
from efprof.facts.run.run import Run
from efprof.facts.source.sources import line_at
from efprof.model import Evidence, Narrative, NotRecorded, Table, frozen_dataclass

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


def hunted_sentence(run: Run) -> str:
    """Of a hunt that is over, in one sentence or two."""
    hunt = run.get(Hunted).hunt
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
    name = f"`{forward_name(origin)}`"
    name = (
        f"The update of `{origin.optimizer}`"
        if origin.optimizer
        else f"The gradient of {name}"
        if origin.node
        else name
    )
    of = " and ".join(f"{_called(one)}, {_numbers(one)}" for one in _telling(origin)) or "no number"
    at = " where a mask hides it" if origin.is_masked else ""
    return f"{name} makes {'NaN' if origin.kind == 'nan' else 'Inf'}{at}: it is given {of}."


def how_it_is_known(run: Run) -> tuple[Evidence, ...]:
    """What the operation was given, and how what it made went on; nothing where no origin was seen."""
    hunted = run.find(Hunted)
    if hunted is None or (origin := hunted.origin) is None:
        return ()
    hunt, columns = (
        hunted.hunt,
        {
            "tensor": "",
            "type": "",
            "least": "",
            "largest": "",
            "zero": "count",
            "NaN or Inf": "count",
            "written at": "",
        },
    )
    rows = [
        (
            one.name or "not named", f"{one.dtype} {one.shape}", _short(one.low), _short(one.high), one.num_zero,
            one.num_nan + one.num_inf, ":".join(one.made_at.split(":")[:2]),
        )
        for one in (*origin.operands, *filter(None, [origin.result]))
    ]  # fmt: skip
    said = [
        f"The command ran again: {hunt.num_equal:,} losses were equal to the recorded ones, and step {hunt.step:,} "
        "went bad again."
    ]
    if origin.module:
        said.append(f"The module was `{origin.module}`.")
    if origin.library_site and origin.site:
        said.append(f"A library called it at {':'.join(origin.library_site.split(':')[:2])}.")
    if hunt.is_compiled:
        said.append("Compiled code was traced as eager code.")
    lines = dict.fromkeys(_place(run, hop.site, "") for hop in hunt.chain[1:] if hop.site)
    if lines:
        said.append(f"It went on by {', '.join(list(lines)[:MAX_LINES])}.")
    return Table.of("What it was given, and what it made, in the second run", columns, rows), Narrative.of(*said)


def _place(run: Run, site: str | None, library: str) -> str:
    return str(line_at(run, site)) if site else ":".join(library.split(":")[:2]) or "a line that is not known"


def _telling(origin: Origin) -> list[Operand]:
    """What holds zeros or numbers that are not finite, else what is largest; a mask tells nothing."""
    numbers = [one for one in origin.operands if one.dtype != "bool"]
    found = [one for one in numbers if one.num_zero or one.num_nan or one.num_inf]
    return found[-1:] or sorted(numbers, key=_most)[-1:]


def _called(one: Operand) -> str:
    return f"`{one.name}`" if one.name else f"{one.dtype} {one.shape}" if one.shape else f"a {one.dtype} number"


def _numbers(one: Operand) -> str:
    if one.num_nan or one.num_inf:
        return f"of which {one.num_nan + one.num_inf:,} of {one.num_elements:,} are not finite"
    if one.num_zero == one.num_elements:
        return "0 everywhere" if one.shape else "which is 0"
    if one.num_zero:
        return f"0 in {one.num_zero:,} of {one.num_elements:,} places"
    return f"{_short(one.low)} to {_short(one.high)}" if one.low != one.high else _short(one.low)


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


MAX_LINES = 6
HALF_LARGE = 1e3
"""In float16, a product of two such numbers has no room."""
BEYOND_MEASURE = 1e9
"""In float32: that the square of more overflows only shows what went wrong before."""


def grown_buffer(origin: Origin) -> Operand | None:
    """A buffer among what it was given that is larger than anything usual."""
    limit = HALF_LARGE if _is_half(origin) else BEYOND_MEASURE
    return next((one for one in origin.operands if one.is_a == "buffer" and _most(one) > limit), None)


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
