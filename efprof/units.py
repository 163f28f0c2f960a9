"""The only place that formats and reads bytes, times and shares for people."""

import math
import re

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4

MAX_BYTES = 2**63 - 1
"""The largest count that every reader of our JSON takes."""


def format_bytes(num_bytes: float) -> str:
    """Bytes in the largest binary unit that keeps at least one whole one: `61.0 MiB`."""
    size = abs(num_bytes)
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= factor:
            return f"{num_bytes / factor:.{_decimals(size / factor)}f} {unit}"
    return f"{num_bytes:.0f} B"


def parse_bytes(text: str) -> int:
    """`24GiB` and `24G` are binary, `24GB` decimal, `24` and `24B` bytes, in any case; else raises ValueError."""
    found = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*(?:([KMGTPE])(IB|B)?|B)?", text.strip().upper())
    if found is None:
        raise ValueError(f"no size: {text!r}")
    number, letter, ending = found.groups()
    factor: int = (1000 if ending == "B" else 1024) ** (" KMGTPE".index(letter) if letter else 0)
    num_bytes = float(number) * factor
    if num_bytes > MAX_BYTES:
        raise ValueError(f"no size: {text!r}")
    return round(num_bytes)


def format_ms(milliseconds: float) -> str:
    """Milliseconds as us, ms, s or min, three significant digits."""
    size = abs(milliseconds)
    if size >= 60_000:
        return f"{milliseconds / 60_000:.1f} min"
    if size >= 1000:
        return f"{milliseconds / 1000:.{_decimals(size / 1000)}f} s"
    if size >= 1 or size == 0:
        return f"{milliseconds:.{_decimals(size)}f} ms"
    return f"{milliseconds * 1000:.{_decimals(size * 1000)}f} us"


def format_duration(seconds: float) -> str:
    """A span of time in words, with the two digits that a prediction has: `40 seconds`, `3.5 days`."""
    spans = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))
    unit, length = next((span for span in spans if seconds >= span[1]), spans[-1])
    number = f"{float(f'{seconds / length:.2g}'):g}"
    return f"{number} {unit}{'' if number == '1' else 's'}"


def format_share(share: float) -> str:
    """A share of one as a percentage: `0.4 %`."""
    percent = share * 100
    return f"{percent:.{1 if abs(percent) < 10 else 0}f} %"


def format_count(number: int, noun: str) -> str:
    """`1 step`, `2 steps`, `2,000 steps`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def format_times(number: float) -> str:
    """`once`, `8 times`."""
    return "once" if number == 1 else f"{format_value(number, 'count')} times"


def with_capital(text: str) -> str:
    """The text as a sentence begins."""
    return text[:1].upper() + text[1:]


def format_change(effect: float) -> str:
    """A relative change with its sign: `+3.1 %`; what more than doubles as a factor: `27.1x`."""
    if effect > 1:
        return f"{effect + 1:,.{0 if effect >= 99 else 1}f}x"
    percent = round(effect * 100, 1)
    return f"{percent:+.1f} %" if percent else "0.0 %"


def format_value(value: float, unit: str) -> str:
    """A value in one of the base units that evidence and metrics use; nan and inf, which have no unit, by name."""
    if not math.isfinite(value):
        return str(float(value))
    match unit:
        case "bytes":
            return format_bytes(value)
        case "bytes_per_step":
            return f"{format_bytes(value)}/step"
        case "ms":
            return format_ms(value)
        case "s":
            return format_ms(value * 1000)
        case "percent":
            return format_share(value / 100)
        case "ratio":
            return f"{value:.2f}x"
        case "count":
            return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
        case _:
            return f"{value:,.4g}" + (f" {unit}" if unit else "")


def format_interval(low: float, high: float, unit: str) -> str:
    """`10.1 ms to 14.0 ms`; empty where both ends read the same, as then the value between them does."""
    first, last = format_value(low, unit), format_value(high, unit)
    return "" if first == last else f"{first} to {last}"


def in_brackets(text: str) -> str:
    """What is put behind a value, with the space before it; empty where there is nothing to say."""
    return f" ({text})" if text else ""


def _decimals(size: float) -> int:
    return 0 if size >= 100 else 1 if size >= 10 else 2
