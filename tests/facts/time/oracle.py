"""What a trace says, reckoned from its JSON alone with plain loops: reports are checked against it. It is slow.

    python -m tests.facts.time.oracle trace.json.gz

It knows nothing of the engine: each rule is the sentence of docs/time.md that it is written beside.
"""

import gzip
import json
import re
import statistics
import sys
from bisect import bisect_right
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
RUNTIME = ("cuda_runtime", "cuda_driver", "runtime")
HOST = (*RUNTIME, "cpu_op", "operator", "python_function", "user_annotation")
STEP = re.compile(r"ProfilerStep\s*#?\d+")
LOADER = re.compile(r"torch/utils/data/dataloader\.py\(\d+\): __next__$|enumerate\(DataLoader\)#")
COLLECTIVE = re.compile(r"nccl|rccl|multimem_all_|nvshmem|deep_ep::", re.I)
WAIT = re.compile(r"Synchronize|Memcpy")
QUEUE_US = 5000.0
"""Longer between a launch and its kernel, with nothing before it: what ran then is not in the trace."""

Span = tuple[float, float]


@dataclass(frozen=True)
class Event:
    """Microseconds."""

    start: float
    end: float
    name: str
    category: str
    lane: tuple[str, str]
    correlation: object


@dataclass(frozen=True)
class Truth:
    """Milliseconds of the mean step after warm-up, or of the whole trace where it tells no steps."""

    num_warm_up: int
    num_steps: int
    step_ms: float
    device_period_ms: float
    busy_ms: float
    not_launched_ms: float
    """Nothing runs, and what runs next is not launched yet."""
    in_function: tuple[tuple[str, float], ...]
    """Of that, what the launching thread is innermost in."""
    loader_ms: float
    exposed_ms: float
    first_calls_ms: float
    """Of all that was traced, not of a step."""


def truth_of(path: Path) -> Truth:
    """Raises what the file's reading raises."""
    events = _events(path)
    host, device = [e for e in events if e.category in HOST], [e for e in events if e.category in DEVICE]
    every = host + device or events
    whole = min(e.start for e in every), max(e.end for e in every)
    steps = _steps(host, whole)
    num_warm_up = _num_warm_up([end - start for start, end in steps])
    every_step, steps = steps, steps[num_warm_up:]
    traced_from = every_step[0][0]
    begin, end = steps[0][0], steps[-1][1]
    launches = {e.correlation: e for e in host if e.category in RUNTIME and e.correlation is not None}
    first, last = _period(begin, end, device, launches)
    kernels = sorted((e for e in device if e.end > first and e.start < last), key=lambda e: e.start)
    busy = _union([(max(e.start, first), min(e.end, last)) for e in kernels])
    computing = _union([(max(e.start, first), min(e.end, last)) for e in kernels if not COLLECTIVE.search(e.name)])
    late = _late(kernels, launches, first, last) if kernels else []
    loader = _union([(e.start, e.end) for e in host if LOADER.match(e.name)])
    lanes = _innermost(host)
    spent = defaultdict[str, float](float)
    for start, until, lane in late:
        for name, us in _within(lanes.get(lane, []), start, until):
            spent[name] += us
    n = len(steps)
    runtime = [e for e in host if e.category in RUNTIME and e.end > traced_from and e.start < end]
    return Truth(
        num_warm_up=num_warm_up,
        num_steps=n,
        step_ms=(end - begin) / 1e3 / n,
        device_period_ms=(last - first) / 1e3 / n if kernels else 0.0,
        busy_ms=_length(busy) / 1e3 / n,
        not_launched_ms=sum(until - start for start, until, _ in late) / 1e3 / n,
        in_function=tuple((name, us / 1e3 / n) for name, us in sorted(spent.items(), key=lambda one: -one[1])[:3]),
        loader_ms=sum(max(0.0, min(b, end) - max(a, begin)) for a, b in loader) / 1e3 / n,
        exposed_ms=(_length(busy) - _length(computing)) / 1e3 / n,
        first_calls_ms=_first_calls(runtime, device, [start for start, _ in every_step]) / 1e3,
    )


def _events(path: Path) -> list[Event]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8", "replace")
    found: Any = json.loads(text, strict=False)
    kept = []
    for one in found["traceEvents"] if isinstance(found, dict) else found:
        if one.get("ph") == "X" and "dur" in one:
            start, us = float(one["ts"]), float(one["dur"])
            lane = str(one.get("pid")), str(one.get("tid"))
            category, arguments = str(one.get("cat", "")).lower(), one.get("args") or {}
            correlation = arguments.get("correlation")
            kept.append(Event(start, start + us, str(one.get("name")), category, lane, correlation))
    return kept


def _steps(host: list[Event], whole: Span) -> list[Span]:
    """By the profiler's label, else the ends of the optimizer's steps, else the label that repeats and takes most."""
    marks = [e for e in host if e.category == "user_annotation"] or [
        e for e in host if e.category == "operator" and re.match(r"ProfilerStep|Optimizer\.step#", e.name)
    ]
    labels = [e for e in marks if STEP.match(e.name)]
    if labels:
        return _until_next(_outermost(labels))
    updates = _outermost([e for e in marks if e.name.startswith("Optimizer.step#")])
    if len(updates) > 1:
        ends = [e.end for e in updates]
        return list(zip([whole[0], *ends[:-1]], ends, strict=True))
    by_name = defaultdict[str, list[Event]](list)
    for e in marks:
        by_name[e.name].append(e)
    sets = [together for one in by_name.values() if len(together := _outermost(one)) > 1]
    best = max(sets, key=lambda together: sum(e.end - e.start for e in together), default=[])
    if sum(e.end - e.start for e in best) * 2 > whole[1] - whole[0]:
        return _until_next(best)
    return [whole]


def _outermost(events: list[Event]) -> list[Event]:
    found: list[Event] = []
    for e in sorted(events, key=lambda e: (e.start, -e.end)):
        if not found or e.start >= max(one.end for one in found if one.lane == e.lane or one is found[0]):
            found.append(e)
    return found


def _until_next(events: list[Event]) -> list[Span]:
    starts = [e.start for e in events]
    return list(zip(starts, [*starts[1:], events[-1].end], strict=True))


def _num_warm_up(lengths: list[float]) -> int:
    """Leading steps of over three times the median of the others are left out; two at least are kept."""
    number = 0
    while number < len(lengths) - 2 and lengths[number] > 3 * statistics.median(lengths[number + 1 :]):
        number += 1
    return number


def _period(begin: float, end: float, device: list[Event], launches: dict[object, Event]) -> Span:
    """From when the device comes to these steps until it comes to what follows: a kernel is of the step that launched
    it, whenever it runs."""
    launched = [(launches[e.correlation].start, e) for e in device if e.correlation in launches]
    theirs = [(at, e) for at, e in launched if begin <= at < end]
    if not theirs:
        return begin, end
    at, first = min(theirs, key=lambda pair: pair[1].start)
    before = [e for e in device if e.correlation not in launches or launches[e.correlation].start < begin]
    is_behind = first.start - at > QUEUE_US or any(e.end > begin and e.start < first.start for e in before)
    after = [e.start for at, e in launched if at >= end]
    return (first.start if is_behind else begin), (min(after) if after else max(end, *(e.end for _, e in theirs)))


def _late(kernels: list[Event], launches: dict[object, Event], first: float, last: float) -> list[Any]:
    """Each stretch in which nothing runs and what runs next is not launched, with the thread that launches it."""
    found, free = [], first
    for e in kernels:
        launch = launches.get(e.correlation)
        if e.start > free and launch and (until := min(launch.end, e.start, last)) > free:
            found.append((free, until, launch.lane))
        free = max(free, e.end)
    if free < last and launches:
        found.append((free, last, ("", "")))
    return found


def _union(spans: list[Span]) -> list[Span]:
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _length(spans: list[Span]) -> float:
    return sum(end - start for start, end in spans)


def _innermost(host: list[Event]) -> dict[tuple[str, str], list[tuple[float, float, str]]]:
    """Each thread as pieces, each with the innermost event in it; what outlasts the event around it ends with it."""
    found = {}
    by_lane = defaultdict[tuple[str, str], list[Event]](list)
    for e in host:
        if not STEP.match(e.name):
            by_lane[e.lane].append(e)
    for lane, events in by_lane.items():
        pieces: list[tuple[float, float, str]] = []
        stack: list[tuple[float, str]] = []
        at = 0.0
        for one in [*sorted(events, key=lambda e: (e.start, -e.end)), None]:
            now = one.start if one else float("inf")
            while stack and stack[-1][0] <= now:
                end, name = stack.pop()
                pieces.append((at, end, name))
                at = end
            if one:
                if stack:
                    pieces.append((at, now, stack[-1][1]))
                at = now
                stack.append((min(one.end, stack[-1][0]) if stack else one.end, one.name))
        found[lane] = [piece for piece in pieces if piece[1] > piece[0]]
    return found


def _within(pieces: list[tuple[float, float, str]], start: float, until: float) -> list[tuple[str, float]]:
    found = []
    for place in range(max(0, bisect_right(pieces, (start, float("inf"), "")) - 1), len(pieces)):
        begin, end, name = pieces[place]
        if begin >= until:
            break
        if end > start:
            found.append((name, min(end, until) - max(begin, start)))
    return found


def _first_calls(runtime: list[Event], device: list[Event], starts: list[float]) -> float:
    """Calls of the driver that do not wait: over a millisecond and 20 times the lower median of their name.

    Five of a name at most, in half of the steps at most, or in one; where there are more, those that launch a kernel
    which none before them has launched. Of a name that comes once, over 100 ms. What several threads call at once
    counts once.
    """
    kernels = {e.correlation: e.name for e in device if e.correlation is not None}
    by_name = defaultdict[str, list[Event]](list)
    launched, first = set[str](), set[int]()
    for e in sorted(runtime, key=lambda e: e.start):
        if not WAIT.search(e.name):
            by_name[e.name].append(e)
        kernel = kernels.get(e.correlation)
        if kernel is not None and kernel not in launched:
            launched.add(kernel)
            first.add(id(e))
    found = []
    for events in by_name.values():
        lengths = [e.end - e.start for e in events]
        least = max(1e3, 20 * statistics.median_low(lengths)) if len(lengths) > 1 else 1e5
        long = [e for e in events if e.end - e.start > least]
        num_steps = len({bisect_right(starts, e.start) for e in long})
        is_few = len(long) <= 5 and num_steps <= max(1, len(starts) / 2)
        found += [(e.start, e.end) for e in long if is_few or id(e) in first]
    return _length(_union(found))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(json.dumps({"trace": argument, **asdict(truth_of(Path(argument)))}, indent=1))
