"""At which of the lines that head changed its step spends more time, or else in which stage."""

import ast
import os
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher, unified_diff
from functools import partial
from itertools import chain
from pathlib import Path

from efprof.model import (
    STAGES,
    LineGrowth,
    LineTime,
    MetricChange,
    Report,
    SourceFile,
    SourceLine,
    frozen_dataclass,
    lines_of,
)

MIN_PART = 0.2
"""Of what a step got longer: a line that grew by less explains nothing."""
MIN_STAGE_PART = 0.5
MAX_BLAMED = 3
MAX_FILE_BYTES = 1 << 20
"""A larger file that changed is data."""
MAX_DIFF_LINES = 400


@frozen_dataclass
class Hunk:
    """Lines of a file that head has in place of base's, by their numbers from 1; `functions` begin at these in head."""

    file: str
    base: range
    head: range
    functions: frozenset[int]


@frozen_dataclass
class SideChanges:
    """What head's tree has changed of base's; the diff is cut where nobody would read on."""

    hunks: tuple[Hunk, ...] = ()
    diff: tuple[str, ...] = ()


def changes_between(base: Path, head: Path) -> SideChanges:
    """By the texts below these folders, links left alone."""
    hunks, diff = [], list[str]()
    for name in sorted({*_files(base), *_files(head)}):
        old, new = (_text(folder / name) for folder in (base, head))
        if old == new or old is None or new is None:
            continue
        before, after = lines_of(old), lines_of(new)
        functions = _functions(SourceFile(name, after)) if name.endswith(".py") else {}
        for tag, start, end, new_start, new_end in SequenceMatcher(None, before, after, False).get_opcodes():
            if tag != "equal":
                come = range(new_start + 1, new_end + 1)
                within = {first for first, span in functions.items() if come and come[0] in span}
                gone = range(start + 1, end + 1)
                hunks.append(Hunk(file=name, base=gone, head=come, functions=frozenset(within)))
        diff += unified_diff(before, after, f"a/{name}", f"b/{name}", lineterm="")
    if len(diff) > MAX_DIFF_LINES:
        diff[MAX_DIFF_LINES:] = [f"... and {len(diff) - MAX_DIFF_LINES:,} more lines"]
    return SideChanges(hunks=tuple(hunks), diff=tuple(diff))


def slower_at(
    bases: Sequence[Report], heads: Sequence[Report], hunks: Sequence[Hunk], longer_ms: float
) -> tuple[LineGrowth, ...]:
    """The changed lines, and functions with such lines, that take their part of `longer_ms`; the largest first."""
    lines = sorted(chain.from_iterable(report.measurements.lines for report in heads), key=_ms, reverse=True)
    grown = dict[SourceLine, float]()
    for hunk in hunks:
        ours = [line for line in lines if _is_in(line, hunk.file, hunk.head)]
        if ours:
            before = _mean_ms(bases, partial(_is_in, file=hunk.file, numbers=hunk.base))
            grown[ours[0].blame] = _mean_ms(heads, partial(_is_in, file=hunk.file, numbers=hunk.head)) - before
        for line in lines:
            if line.is_function and line.blame.file == hunk.file and line.blame.line in hunk.functions:
                is_same = partial(_is_same, line)
                grown[line.blame] = _mean_ms(heads, is_same) - _mean_ms(bases, is_same)
    found = sorted(grown.items(), key=lambda item: -item[1])
    least = MIN_PART * longer_ms
    return tuple(LineGrowth(blame=blame, longer_ms=ms) for blame, ms in found[:MAX_BLAMED] if ms >= least)


def slower_stage(rows: Sequence[MetricChange], longer_ms: float) -> str:
    """The stage that got longer by most of it, as whole runs saw it; empty where none did."""
    names = {f"{stage}_ms": stage for stage in STAGES}
    grown = {names[row.name]: row.head_median - row.base_median for row in rows if row.name in names}
    stage = max(grown, key=lambda name: grown[name], default="")
    return stage if stage and grown[stage] >= MIN_STAGE_PART * longer_ms else ""


def _files(folder: Path) -> list[str]:
    """Without git's own, and what Python keeps."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in (".git", "__pycache__", ".efprof")]
        found += [str(Path(place, name).relative_to(folder)) for name in names if name != ".git"]
    return found


def _text(path: Path) -> str | None:
    """Empty where there is no such file; None where it is no text that a person writes."""
    try:
        if path.is_symlink() or not path.exists():
            return ""
        return None if path.stat().st_size > MAX_FILE_BYTES else path.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _functions(file: SourceFile) -> dict[int, range]:
    """The lines of each, by the first one, decorators with it, as Python counts it."""
    found = {}
    for node in ast.walk(file.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            found[first] = range(first, (node.end_lineno or first) + 1)
    return found


def _is_in(line: LineTime, file: str, numbers: range) -> bool:
    return not line.is_function and line.blame.file == file and line.blame.line in numbers


def _is_same(function: LineTime, line: LineTime) -> bool:
    names = [(each.blame.file, each.blame.function) for each in (function, line)]
    return line.is_function and names[0] == names[1]


def _ms(line: LineTime) -> float:
    return max(line.host_ms, line.device_ms)


def _mean_ms(reports: Sequence[Report], is_wanted: Callable[[LineTime], bool]) -> float:
    """Per step, on the host or on the device, whichever is longer."""
    wanted = [line for report in reports for line in report.measurements.lines if is_wanted(line)]
    return max(sum(line.host_ms for line in wanted), sum(line.device_ms for line in wanted)) / len(reports)
