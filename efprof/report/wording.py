"""Phrases that every rendering shares, so that all of them say the same words and numbers."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

from efprof import units
from efprof.model import Applicability, Basis, Change, CodeEdit, ConfigurationValue, EnvironmentVariable, Fix, Gain

APPLICABILITY_PHRASES: dict[Applicability, str] = {
    "safe": "safe: the numbers stay the same",
    "review": "review",
    "manual": "by hand",
}
BASIS_PHRASES: dict[Basis, str] = {
    "measured bound": "from measurements",
    "replay": "estimated by replay",
    "model": "estimated",
}
SMALLEST_SHARE = 0.0005
"""A smaller share would read 0.0 %."""
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+")
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters and text-direction overrides: in a terminal they could rewrite what was printed."""


def one_line(text: str) -> str:
    """The text on one line, without control characters, runs of spaces collapsed."""
    return " ".join(_UNPRINTABLE.sub(" ", text).split())


def printable(text: str) -> str:
    """The text with its lines, and every other control character as a replacement sign."""
    return _HIDDEN.sub("\ufffd", text)


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters of the text on one line, its end cut after a word: no number loses digits."""
    line = one_line(text)
    if len(line) <= limit:
        return line
    whole_words = line[: limit - 3].rpartition(" ")[0].rstrip(" ,;:")
    return (whole_words if len(whole_words) > limit // 2 else line[: limit - 3]) + "..."


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
    return line if not line else units.with_capital(line) + ("" if line[-1] in ".?:" else ".")


def code_spans(text: str) -> list[tuple[str, bool]]:
    """The text cut at its pairs of backticks, as (piece, is code); an odd backtick stays as it is."""
    pieces = re.split(r"`([^`]+)`", text)
    return [(piece, place % 2 == 1) for place, piece in enumerate(pieces) if piece]


def source_phrase(source: str) -> str:
    """Where memory was read from, with its article: `the CUDA allocator`; empty where nothing was recorded."""
    return source if not source or source.startswith("the ") else f"the {source}"


def applicability_phrase(fix: Fix) -> str:
    """`review: random augmentations may differ`."""
    return ": ".join(filter(None, (APPLICABILITY_PHRASES[fix.applicability], fix.may_change)))


def gain_phrase(gain: Gain, step_ms: float | None, peak_bytes: int | None, of_step: str = "of the median step") -> str:
    """What a fix saves, with intervals, its basis, and its share of the step and of the peak.

    A bound is an upper limit, unless its interval reaches beyond it; a replay or a model is an estimate. Where the run
    went on for long after the last reading of its peak, the whole run's saving is no less than the interval's low end.
    """
    interval, parts = gain.peak_bytes_interval, []
    is_least = gain.until_step is not None and interval is not None and interval[0] > 0
    if gain.step_ms is not None:
        ends = units.in_brackets(show_interval(gain.step_ms_interval, "ms"))
        whole = (gain.late_step_ms, "of a late step") if gain.late_step_ms else (step_ms, of_step)
        parts.append(f"{show(gain.step_ms, 'ms')}{ends} per step{_share(gain.step_ms, *whole)}")
    if gain.peak_bytes is not None:
        ends = "" if is_least else units.in_brackets(show_interval(interval, "bytes"))
        saved = interval[0] if interval and is_least else gain.peak_bytes
        until = "" if gain.until_step is None else f" up to step {gain.until_step:,}"
        of_what = f"of {show(gain.of_bytes, 'bytes')}" if gain.of_bytes else "of the recorded peak"
        share = _share(saved, gain.of_bytes or peak_bytes, of_what)
        parts.append(f"{show(saved, 'bytes')}{ends} of peak memory{until}{share}")
    if not parts:
        return "no saving predicted"
    pairs = (gain.step_ms, gain.step_ms_interval), (gain.peak_bytes, interval)
    is_beyond = any(value is not None and ends is not None and ends[1] > value for value, ends in pairs)
    verb = "at least" if is_least else "at most" if gain.basis == "measured bound" and not is_beyond else "about"
    return f"saves {verb} {' and '.join(parts)}, {BASIS_PHRASES[gain.basis]}"


def _share(saving: float, whole: float | None, of_what: str) -> str:
    return (
        f", {units.format_share(saving / whole)} {of_what}"
        if whole and SMALLEST_SHARE * whole <= saving <= whole
        else ""
    )


def change_name(change: Change) -> str:
    """What a change touches: the variable, the setting, or the place in the code."""
    match change:
        case EnvironmentVariable():
            return f"environment variable {change.name}"
        case ConfigurationValue():
            return f"{change.name} in {change.file}" if change.file else f"setting {change.name}"
        case CodeEdit():
            return f"{change.file}:{change.line}"


def change_sides(change: Change) -> tuple[list[str], list[str]]:
    """The lines of a change that go and those that come; none go where there was nothing before."""
    match change:
        case EnvironmentVariable():
            old = "" if change.old is None else f"{change.name}={change.old}"
            new = f"{change.name}={change.new}"
        case ConfigurationValue():
            old, new = f"{change.name}: {change.old}", f"{change.name}: {change.new}"
        case CodeEdit():
            old, new = change.old.strip("\n"), change.new.strip("\n")
    return old.splitlines(), new.splitlines()


def change_diff(change: Change) -> list[str]:
    """A change as the lines of a unified diff without context."""
    old, new = change_sides(change)
    return [*("-" + line for line in old), *("+" + line for line in new)]


def device_phrase(devices: Sequence[str]) -> str:
    """`2 x H200`, in the order in which the devices first came."""
    return ", ".join(f"{number} x {name}" for name, number in Counter(devices).items()) or "CPU"


def anchor_of(key: str) -> str:
    """An HTML id made of a finding's key alone, so that links to it survive the next report of the same code."""
    name = re.sub(r"[^a-z0-9]+", "-", key.split(":", 1)[0].lower()).strip("-")
    return f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"
