"""Phrases that every rendering shares, so that all of them say the same words and numbers."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from efprof import units
from efprof.model import Applicability, Change, CodeEdit, ConfigurationValue, EnvironmentVariable, Gain

APPLICABILITY_PHRASES: Final[dict[Applicability, str]] = {
    "safe": "safe: the numbers stay the same",
    "review": "review: numerics or behaviour may change",
    "manual": "manual: a person must write it",
}
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+")
_HIDDEN: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters and text-direction overrides: in a terminal they could rewrite what was printed."""


def one_line(text: str) -> str:
    """The text on one line, without control characters, runs of spaces collapsed."""
    return " ".join(_UNPRINTABLE.sub(" ", text).split())


def printable(text: str) -> str:
    """The text with its lines, and every other control character as a replacement sign."""
    return _HIDDEN.sub("\ufffd", text)


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters of the text on one line, its end cut."""
    line = one_line(text)
    return line if len(line) <= limit else line[: limit - 3].rstrip() + "..."


def shorten_path(path: str, limit: int) -> str:
    """At most `limit` characters of a path, its beginning cut: the end says which file it is."""
    line = one_line(path)
    return line if len(line) <= limit else "..." + line[-(limit - 3) :]


def show(value: float | None, unit: str) -> str:
    """A value in a base unit for people; `not seen` for None, and nan and inf by name."""
    if value is None:
        return "not seen"
    return units.format_value(value, unit)


def show_interval(interval: tuple[float, float] | None, unit: str) -> str:
    """`10.1 ms to 14.0 ms`; empty where there is none, and where it reads as no interval."""
    return units.format_interval(*interval, unit) if interval else ""


def sentence(text: str) -> str:
    """The text on one line with a capital at its beginning and a full stop at its end."""
    line = one_line(text)
    return line if not line else line[0].upper() + line[1:] + ("" if line[-1] in ".?:" else ".")


def code_spans(text: str) -> list[tuple[str, bool]]:
    """The text cut at its pairs of backticks, as (piece, is code); an odd backtick stays as it is."""
    pieces = re.split(r"`([^`]+)`", text)
    return [(piece, place % 2 == 1) for place, piece in enumerate(pieces) if piece]


def count_of(number: int, noun: str) -> str:
    """`1 step`, `2 steps`, `2,000 steps`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def source_phrase(source: str) -> str:
    """Where memory was read from, with its article: `the CUDA allocator`; empty where nothing was recorded."""
    return source if not source or source.startswith("the ") else f"the {source}"


def gain_verb(gain: Gain) -> str:
    """A bound is an upper limit, unless its interval reaches beyond it; a replay or a model is an estimate.

    What holds of the part of the run that was read is a lower limit of what the whole run saves.
    """
    if is_lower_bound(gain):
        return "saves at least"
    pairs = (gain.step_ms, gain.step_ms_interval), (gain.peak_bytes, gain.peak_bytes_interval)
    reaches_beyond = any(value is not None and interval and interval[1] > value for value, interval in pairs)
    return "saves up to" if gain.basis == "measured bound" and not reaches_beyond else "saves about"


def is_lower_bound(gain: Gain) -> bool:
    """Whether the run went on for long after the last reading of its peak: then the interval's low end holds."""
    return gain.until_step is not None and gain.peak_bytes_interval is not None and gain.peak_bytes_interval[0] > 0


def peak_saved(gain: Gain) -> str:
    """The bytes of the peak that the verb goes with: the least where that is a lower limit."""
    least = gain.peak_bytes_interval[0] if is_lower_bound(gain) and gain.peak_bytes_interval else None
    return show(gain.peak_bytes if least is None else least, "bytes")


def until_phrase(gain: Gain) -> str:
    """` up to step 23`; empty where the saving is that of the whole run."""
    return "" if gain.until_step is None else f" up to step {gain.until_step:,}"


def gain_phrase(gain: Gain) -> str:
    """What a fix saves, with interval and basis, in one phrase."""
    parts = []
    if gain.step_ms is not None:
        ends = units.in_brackets(show_interval(gain.step_ms_interval, "ms"))
        parts.append(f"{show(gain.step_ms, 'ms')}{ends} per step")
    if gain.peak_bytes is not None:
        ends = "" if is_lower_bound(gain) else units.in_brackets(show_interval(gain.peak_bytes_interval, "bytes"))
        parts.append(f"{peak_saved(gain)}{ends} of peak memory{until_phrase(gain)}")
    return f"{gain_verb(gain)} {' and '.join(parts)}, by {gain.basis}" if parts else "no saving is claimed"


def change_name(change: Change) -> str:
    """What a change touches: the variable, the setting, or the place in the code."""
    match change:
        case EnvironmentVariable():
            return f"environment variable {change.name}"
        case ConfigurationValue():
            return f"{change.name} in {change.file}" if change.file else f"setting {change.name}"
        case CodeEdit():
            return f"{change.file}:{change.line}"


def change_sides(change: Change) -> tuple[str, str]:
    """The old and the new text of a change; the old one is empty where there was none."""
    match change:
        case EnvironmentVariable():
            return ("" if change.old is None else f"{change.name}={change.old}", f"{change.name}={change.new}")
        case ConfigurationValue():
            return f"{change.name}: {change.old}", f"{change.name}: {change.new}"
        case CodeEdit():
            return change.old.strip("\n"), change.new.strip("\n")


def device_phrase(devices: Sequence[str]) -> str:
    """`2 x H200`, in the order in which the devices first came."""
    return ", ".join(f"{number} x {name}" for name, number in Counter(devices).items()) or "CPU"


def anchor_of(key: str) -> str:
    """An HTML id made of a finding's key alone, so that links to it survive the next report of the same code."""
    name = re.sub(r"[^a-z0-9]+", "-", key.split(":", 1)[0].lower()).strip("-")
    return f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"
