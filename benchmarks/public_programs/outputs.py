"""What a program printed, without what differs between any two runs of it: times, addresses, what a bar redrew."""

import re
from collections.abc import Sequence
from difflib import unified_diff

TIMES = (
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.,]\d+)?",
    r"\d+:\d\d<(\d+:\d\d|\?)",  # a progress bar's time gone and to come
    r"(\d+:)?\d+:\d\d(\.\d+)?",
    r"-?\d+(\.\d+)?(e-?\d+)?\s?(ms|us|s|secs|seconds|min|it/s|s/it|s/iter)\b",
    r"\?it/s",
    r"\b(ms/batch|time:?)\s+\d+(\.\d+)?",
    r"\b\d{10}\b",  # seconds since 1970, in names of folders
)
ADDRESS = r"0x[0-9a-f]{6,}"
TORCH_WARNING = r"^\[W\d{3,4} \d\d:\d\d:\d\d\.\d+ "
"""How torch's C++ begins a warning: with date and time."""
MAX_SHOWN = 6
"""Lines of a difference."""

RECORDER_LINES = (r"^efprof: ", r"registerClient")
"""Lines on standard error that recording adds: its own, and one of torch's profiler (docs/recording.md)."""


def normalised(text: str, varies: Sequence[str] = ()) -> list[str]:
    """Lines of `text`. Of a line that was drawn again and again only the last drawing counts."""
    return [_normalised_line(line, varies) for line in text.replace("\r\n", "\n").split("\n")]


def without_recorder_lines(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if not any(re.search(pattern, line) for pattern in RECORDER_LINES)]


def difference(bare: Sequence[str], recorded: Sequence[str]) -> str | None:
    """The first lines that differ; None where all are equal."""
    changed = [line for line in unified_diff(bare, recorded, n=0, lineterm="") if not _is_heading(line)]
    if not changed:
        return None
    more = len(changed) - MAX_SHOWN
    return "\n".join(changed[:MAX_SHOWN] + ([f"... {more} more lines"] if more > 0 else []))


def _normalised_line(line: str, varies: Sequence[str]) -> str:
    line = line.rstrip("\r ").rpartition("\r")[2]
    line = re.sub(TORCH_WARNING, "[W ", line)
    line = re.sub(ADDRESS, "<address>", line)
    for pattern in varies:
        line = re.sub(pattern, "<varies>", line)
    for pattern in TIMES:
        line = re.sub(pattern, "<time>", line)
    return re.sub(r" {2,}", " ", line)  # shorter figures have more spaces before them


def _is_heading(line: str) -> bool:
    return line.startswith(("---", "+++", "@@"))
