"""Which of the user's lines, or else which module, label or operator, work was launched from."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from efprof.facts.source.sources import Sources
from efprof.facts.time.path_tree import CallPath, Kind
from efprof.facts.time.trace_windows import TraceWindow
from efprof.model import SourceLine

MAIN_SHARE = 0.5
"""The innermost line that most of it passes through is the one to name: the lines inside have too little each."""
MIN_SHARE = 0.1
"""A line that fewer launches pass through is not where they come from: a module or an operator is named then."""

UNKNOWN = SourceLine(file="a line that was not recorded")
NO_PLACE = re.compile(r"(nccl|rccl|gloo|c10d):|record_param_comms$")
"""What torch calls any collective, wherever it is."""


def launching_line(weights: Iterable[tuple[CallPath, float]], sources: Sources) -> SourceLine | None:
    """The innermost line with most of the weight, else module, label or operator; None where no path has any."""
    by_path = defaultdict[CallPath, float](float)
    for path, weight in weights:
        by_path[path] += weight
    total = sum(by_path.values())
    kinds: tuple[tuple[Kind, ...], ...] = (("line", "function"), ("module",), ("label", "operator"))
    for wanted in kinds:
        part, weight = _main_part(by_path, wanted)
        if part is not None and 0 < MIN_SHARE * total <= weight:
            return _named(part, sources)
    return None


def _main_part(by_path: Mapping[CallPath, float], wanted: tuple[Kind, ...]) -> tuple[CallPath | None, float]:
    inclusive = defaultdict[str, float](float)
    first: dict[str, CallPath] = {}
    depth = Counter[str]()
    for path, weight in by_path.items():
        parts = [part for part in path.parts() if part.kind in wanted and not NO_PLACE.match(part.text)]
        for level, part in enumerate(parts):
            first.setdefault(part.text, part)
            depth[part.text] = max(depth[part.text], level)
        for text in {part.text for part in parts}:
            inclusive[text] += weight
    if not inclusive:
        return None, 0.0
    most = max(inclusive.values())
    main = (text for text, weight in inclusive.items() if weight >= MAIN_SHARE * most)
    text = max(main, key=lambda one: (depth[one], inclusive[one], one))
    return first[text], inclusive[text]


def blame_of(path: CallPath, sources: Sources) -> SourceLine:
    """The innermost line or function; else what names the innermost module, label or operator."""
    part = path.owner or path.nearest("module") or path.nearest("label") or path.nearest("operator")
    return _named(part, sources) if part else UNKNOWN


def _named(part: CallPath, sources: Sources) -> SourceLine:
    if part.owner is part:
        return sources.line(part.text)
    return SourceLine(file=f"{part.kind} {part.text} (line not recorded)", function=part.text)


def what_tells_lines(window: TraceWindow) -> str:
    """What a trace lacks that names no line of the user's, and how it is recorded."""
    trace = window.trace
    if np.any(trace.is_of("python_function")) or "call_stack" in trace.sparse:
        return "Only functions of libraries were recorded: `--own PACKAGE` makes one of these yours."
    return "Your lines were not recorded: `with_stack=True` tells them."
