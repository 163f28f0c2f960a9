"""The waits of a trace: the runtime's calls in which the host waits for a device, and what asked for each of them."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, islice
from typing import Literal

import numpy as np

from efprof.artifacts.steps import MAX_FRAMES
from efprof.artifacts.trace.columns import Trace
from efprof.artifacts.trace.events import Array
from efprof.facts.source.sources import FRAME
from efprof.facts.time.call_paths import LAUNCHES, ON_DEVICE, OPERATORS, RECORDER
from efprof.facts.time.device_lanes import COPY as COPIED
from efprof.facts.time.path_tree import CallPath
from efprof.facts.time.trace_windows import TraceWindow, library_frame

SYNCHRONIZE = re.compile(
    r"^(cuda|cu|hip)(Stream|Device|Event|Ctx)Synchronize|^ze\w*Synchronize|^(cuda|hip)Free$|^cuMemFree"
)
"""Calls that wait for the device, of Level Zero too; to give memory back to the driver waits for all of it."""
LAUNCH = re.compile(r"Launch")
COPY = re.compile(r"^(cuda|cu|hip)Memcpy")
ASYNCHRONOUS, PAGEABLE, TO_HOST = re.compile("Async"), "Pageable", "DtoH"
"""A copy from or to pageable memory waits, whatever its call is named."""

Kind = Literal["read", "synchronisation", "told"]
"""The program reads a value; it waits otherwise; or torch itself does, which no line of the program can end."""
TOLD = {
    "an optimizer": r"\btorch/optim/|^Optimizer\.(step|zero_grad)#",
    "the gradient scaler": r"\btorch/(cuda/)?amp/grad_scaler\.py",
    "clipping of gradients": r"\btorch/nn/utils/clip_grad\.py",
    "the profiler": r"\btorch/(profiler|autograd/profiler)\b",
    "the data loader": r"\btorch/utils/data/|^enumerate\(DataLoader\)#",
    "collectives": r"\btorch/(distributed|nn/parallel)/|^(nccl|gloo|c10d):|^record_param_comms",
    "the compiler": r"\b(torch/_(inductor|dynamo)|triton)/",
}
"""What of torch asks, by names around the wait."""
RATE_LIMITER = "FullyShardedDataParallel.rate_limiter"
"""A label around a wait that a setting turns off."""
IN_LABEL = "DistributedDataParallel.forward"
"""Its own waits lie in this label itself, the model's in operators in it."""
READS = {
    "item": "item", "_local_scalar_dense": "item", "is_nonzero": "bool", "equal": "bool", "allclose": "bool",
}  # fmt: skip
COPIES = frozenset({"to", "_to_copy", "copy_", "clone", "contiguous"})
INDEXES = re.compile(r"_?index(_put|$)")
SIZED = re.compile(r"_?(masked_select|unique|repeat_interleave|one_hot|bincount|argwhere|nonzero|where)")
"""Operators whose result is as large as values on the device say."""

CLOCKS_NS = 10_000
"""By how much the clocks of host and device differ: on an MI300X a kernel ended 8 us after the wait for it."""


@dataclass(slots=True)
class TraceWait:
    """One wait: the calls that one operator makes for it, or one call that no operator makes.

    `waited_ns` is what no earlier wait, on whatever thread, covers. `idle_ns` is how long the device, which ran dry in
    this wait, had nothing to do until the host had launched its next work; none where nothing followed. `library` has
    the frames of libraries around it, the innermost first, up to the user's line.
    """

    kind: Kind
    asked: str
    path: CallPath
    events: list[int]
    start_ns: int
    end_ns: int
    waited_ns: int
    library: tuple[str, ...]
    idle_ns: int = 0


def waiting_calls(trace: Trace) -> Array:
    """The places of the calls that wait and lie in no other such call of their thread, in order of their start."""
    pageable = [number for number, copy in _copies(trace).items() if PAGEABLE in copy]
    copies = trace.matches(COPY) & (~trace.matches(ASYNCHRONOUS) | np.isin(trace.id, pageable))
    waits = trace.is_of(*LAUNCHES) & (trace.matches(SYNCHRONIZE) | copies)
    return outermost_calls(trace, np.flatnonzero(waits))[0]


def outermost_calls(trace: Trace, events: Array) -> tuple[Array, dict[int, int]]:
    """The calls that lie in no other of their thread; and for each event the place of the one that it lies in."""
    found: list[int] = []
    outer: dict[int, int] = {}
    current: dict[int, int] = {}
    for event in events.tolist():
        thread = int(trace.lane[event])
        if thread not in current or trace.start_ns[event] >= trace.end_ns[found[current[thread]]]:
            current[thread] = len(found)
            found.append(event)
        outer[event] = current[thread]
    return np.array(found, np.int64), outer


def waits_in(window: TraceWindow) -> list[TraceWait]:
    """All waits of the threads that make the steps, in order of their start; each nanosecond is one's only."""
    trace, paths, (covered_ns, last_ns) = window.trace, window.paths, window.bounds
    is_operator, copies = trace.is_of(*OPERATORS), _copies(trace)
    calls = waiting_calls(trace)
    inside = trace.overlaps(covered_ns, last_ns) & np.isin(trace.lane, list(paths.threads))
    calls = calls[inside[calls]]

    def asking(call: int) -> int:
        outer = paths.outer.get(call, -1)
        return outer if outer >= 0 and is_operator[outer] else -call - 1

    @cache
    def frame_of(text: str) -> str | None:
        return None if window.sites_of(text, None, None) else library_frame(text)

    waits = []
    for _, together in groupby(calls.tolist(), asking):
        events, waited_ns = list(together), 0
        for call in events:
            start_ns, end_ns = trace.span(call)
            waited_ns += max(0, min(end_ns, last_ns) - max(start_ns, covered_ns))
            covered_ns = max(covered_ns, min(end_ns, last_ns))
        around = _around(window, events[0])
        operators = [trace.text(event).removeprefix("aten::") for event in around if is_operator[event]]
        copied = " ".join(copies.get(int(trace.id[call]), "") for call in events)
        texts = [trace.text(event) for event in (events[0], *around)]
        kind, asked = _asked(texts, operators, copied)
        start_ns, _ = trace.span(events[0])
        library = tuple(islice(filter(None, map(frame_of, texts)), MAX_FRAMES)) if kind != "told" else ()
        waits.append(TraceWait(kind, asked, paths.of_event[events[0]], events, start_ns, end_ns, waited_ns, library))
    starts = [wait.start_ns for wait in waits]
    for gap in window.gaps:
        place = bisect_right(starts, gap.start_ns) - 1
        is_late = gap.cause == "the host had launched nothing" and gap.next_event >= 0
        if is_late and place >= 0 and gap.start_ns <= waits[place].end_ns + CLOCKS_NS:
            waits[place].idle_ns += gap.length_ns
    return waits


def before_the_end(window: TraceWindow, waits: list[TraceWait]) -> list[TraceWait]:
    """Those after which something is launched: what ends a trace of one step need not end each."""
    trace = window.trace
    launches = trace.is_of(*LAUNCHES) & trace.matches(LAUNCH) & trace.overlaps(*window.bounds)
    last_ns = int(trace.start_ns[launches].max(initial=0))
    return [wait for wait in waits if len(window.steps) > 1 or wait.start_ns < last_ns]


def _copies(trace: Trace) -> dict[int, str]:
    """What the device copied for each call, as the profiler names it, by correlation."""
    found = np.flatnonzero(trace.is_of(*ON_DEVICE) & trace.matches(COPIED) & (trace.id >= 0)).tolist()
    return {int(trace.id[event]): trace.text(event) for event in found}


def _around(window: TraceWindow, call: int) -> list[int]:
    """The events around it from the innermost to the user's line, or where none is known to the outermost.

    An operator that begins a stage has a path of its own to the same line.
    """
    paths, found = window.paths, []
    line, event = _line_of(paths.of_event[call]), paths.outer.get(call)
    while event is not None and _line_of(paths.of_event[event]) == line:
        found.append(event)
        event = paths.outer.get(event)
    return found


def _line_of(path: CallPath) -> str | None:
    return path.owner.text if path.owner else None


def _asked(texts: Sequence[str], operators: Sequence[str], copied: str) -> tuple[Kind, str]:
    """By a call's name and those of the events around it, the innermost first; and what the device copied for it."""
    own = [name for name in operators if not name.startswith(("autograd::", "torch::")) and not name[:1].isupper()]
    outer = own[-1] if own else ""
    if "Free" in texts[0] or own[:1] == ["empty"]:
        return "told", "the allocator"
    if told := _told(texts):
        return "told", told
    if any("torch/_tensor_str.py" in text for text in texts):
        return "read", "print"
    if sized := next(filter(None, map(SIZED.match, own[::-1])), None):
        return "synchronisation", "mask" if any(map(INDEXES.match, own)) else sized[1]
    if outer in READS or (TO_HOST in copied and (outer in COPIES or not own)):
        return "read", READS.get(outer, "cpu")
    is_copy = outer in COPIES or (not own and COPY.match(texts[0]))
    return "synchronisation", "copy" if is_copy else outer or "synchronize"


def _told(texts: Sequence[str]) -> str:
    """Who waits where torch's own code asks for it: up to the first function that is not torch's."""
    if RATE_LIMITER in texts:
        return ""
    if texts[1:2] == [IN_LABEL]:
        return "collectives"
    for text in texts:
        found = next((what for what, pattern in TOLD.items() if re.search(pattern, text)), "")
        if found or (FRAME.fullmatch(text) and not re.search(r"\btorch/", text) and not RECORDER.search(text)):
            return found
    return ""
