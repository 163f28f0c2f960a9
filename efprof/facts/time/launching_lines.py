"""Which of the user's lines, or else which module, label or operator, work was launched from."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from efprof.facts.source.sources import Sources
from efprof.facts.time.path_tree import CallPath, Kind
from efprof.facts.time.trace_windows import TraceWindow
from efprof.model import SourceLine, frozen_dataclass

MAIN_SHARE = 0.5
"""The innermost line that most of it passes through is the one to name: the lines inside have too little each."""
MIN_SHARE = 0.1
"""A line that fewer launches pass through is not where they come from: a module or an operator is named then."""

UNKNOWN = SourceLine(file="a line that was not recorded", line=0, function="", text="")
NO_PLACE = re.compile(r"(nccl|rccl|gloo|c10d):|record_param_comms$")
"""What torch calls any collective, wherever it is."""


@frozen_dataclass
class LaunchingLine:
    """What to blame, and how much of the weight passed through it; `is_line` is False of anything else."""

    blame: SourceLine
    is_line: bool
    share: float


def launching_line(weights: Iterable[tuple[CallPath, float]], sources: Sources) -> LaunchingLine | None:
    """The innermost line with most of the weight, else module, label or operator; None where no path has any."""
    by_path: dict[int, tuple[CallPath, float]] = {}
    for path, weight in weights:
        by_path[id(path)] = path, by_path.get(id(path), (path, 0.0))[1] + weight
    paths = list(by_path.values())
    total = sum(weight for _, weight in paths) or 1.0
    kinds: tuple[tuple[Kind, ...], ...] = (("line", "function"), ("module",), ("label", "operator"))
    for wanted in kinds:
        found = _main_part(paths, wanted)
        if found is not None and found[1] >= MIN_SHARE * total:
            part, weight = found
            is_line = wanted[0] == "line"
            blame = sources.line(part.text) if is_line else _without_line(part)
            return LaunchingLine(blame=blame, is_line=is_line, share=weight / total)
    return None


def _main_part(paths: list[tuple[CallPath, float]], wanted: tuple[Kind, ...]) -> tuple[CallPath, float] | None:
    inclusive: defaultdict[str, float] = defaultdict(float)
    first: dict[str, CallPath] = {}
    depth: Counter[str] = Counter()
    for path, weight in paths:
        parts = [part for part in path.parts() if part.kind in wanted and not NO_PLACE.match(part.text)]
        for level, part in enumerate(parts):
            first.setdefault(part.text, part)
            depth[part.text] = max(depth[part.text], level)
        for text in {part.text for part in parts}:
            inclusive[text] += weight
    if not inclusive:
        return None
    most = max(inclusive.values())
    main = [text for text, weight in inclusive.items() if weight >= MAIN_SHARE * most]
    text = max(main, key=lambda one: (depth[one], inclusive[one], one)) if len(main) > 1 else main[0]
    return first[text], inclusive[text]


def blame_of(path: CallPath, sources: Sources) -> SourceLine:
    """The innermost line or function; else what names the innermost module, label or operator."""
    part = path.nearest("line", "function")
    if part is not None:
        return sources.line(part.text)
    part = path.nearest("module") or path.nearest("label") or path.nearest("operator")
    return _without_line(part) if part else UNKNOWN


def _without_line(part: CallPath) -> SourceLine:
    return SourceLine(file=f"{part.kind} {part.text} (line not recorded)", line=0, function=part.text, text="")


def what_tells_lines(window: TraceWindow) -> str:
    """What a trace lacks that names no line of the user's, and how it is recorded."""
    trace = window.trace
    if np.any(trace.is_of("python_function")) or "call_stack" in trace.sparse:
        return "Only functions of libraries were recorded: `--own PACKAGE` makes one of these yours."
    return "Your lines were not recorded: `with_stack=True` tells them."
