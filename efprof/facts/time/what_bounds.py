"""What bounds a step, where most of it goes, and what to try next: in words."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from efprof.facts.run.run import Run
from efprof.facts.steps.slowdown import Slowdown
from efprof.facts.time.call_paths import LAUNCHES
from efprof.facts.time.device_lanes import DeviceUse, busy_by_device, overlap_ns, spans_of
from efprof.facts.time.idle_causes import IdleCauses
from efprof.facts.time.launches import Launches
from efprof.facts.time.path_tree import CallPath, totals
from efprof.facts.time.time_use import TimeUse, kernel_table
from efprof.facts.time.trace_waits import LAUNCH, waiting_calls
from efprof.facts.time.trace_windows import TraceWindow
from efprof.model import ThinEvidence, UnreadableInput
from efprof.units import format_ms, format_share

BOUND_BY_DEVICE = 0.8
"""Of the step the device is busy: then only less or faster work on it makes the step shorter."""
THE_DEVICE = "the device"
THE_HOST = "the host had launched nothing"
DOES = {
    "memory": "asked its driver for memory",
    "first calls": "called something for the first time",
    "loader": "waited for a batch",
    "operators": "ran operators of its own",
    "Python": "ran Python",
    "launches": "prepared the next launch",
    "nothing recorded": "did what is not recorded",
}
UNCLEAR = "unclear"
SMALLEST_TOLD = 0.05
"""Of the whole: nobody starts with a part of less."""
ONLY_ONE = 0.9
"""A line or module that has nearly all, as `trainer.train()`, says nothing: what is inside it leads."""
WORTH_SAYING = 0.1
MAX_PARTS = 2
MOST = 0.5
SHORT_OPERATOR_US = 20.0
"""On a CPU: to call an operator takes 3 to 10 us, with its gradient; from twice that on it mostly computes."""
UNLIKE = 1.5
MAX_CODE = 48
"""Letters of a line within a sentence; the table has all of it."""
INSTANCE = re.compile(r"_\d+$")
"""The number that torch gives each module of a class."""

Part = tuple[float, str]
"""A share of the whole, and what has it."""


def where_it_goes(run: Run) -> str:
    """One or two sentences: what bounds the step, and what most of it goes to; empty where nothing tells."""
    use = run.find(TimeUse, UnreadableInput)
    if use is None:
        return ""
    is_of_host = use.device is None or _what_bounds(use.device, use.window.scale) == THE_HOST
    parts, whole = _parts(use, on_device=not is_of_host)
    if not parts and is_of_host:  # of a host of which nothing was recorded
        parts, whole = _parts(use, on_device=True)
    if _are_unlike(run):
        whole = whole.replace("the step", use.window.span)
    told = "; ".join(f"{format_share(share)} {name}" for share, name in parts[:MAX_PARTS])
    is_most = sum(share for share, _ in parts[:MAX_PARTS]) > MOST
    most = f"Most {whole} goes to" if is_most else f"The largest parts {whole}"
    none = f"No line, module, operator or kernel takes {format_share(SMALLEST_TOLD)} {whole}."
    return f"{_bound(use, run)} {f'{most}: {told}.' if told else none}".lstrip()


def next_experiment(run: Run) -> str:
    """What to try first where no audit found a fault; empty where nothing tells."""
    use = run.find(TimeUse, UnreadableInput)
    if use is None or not use.window.has_steps or _are_unlike(run):
        return ""
    if use.device is None:
        longest_ns = 1e3 * SHORT_OPERATOR_US / use.window.scale
        operators = [path for path in use.window.walk() if path.kind == "operator" and path.count]
        short = [path for path in operators if path.own_ns <= longest_ns * path.count]
        num_calls = sum(path.count for path in short)
        spent_us = use.window.scale * sum(path.own_ns for path in short) / 1e3
        num, each_us = num_calls / use.window.num_steps, spent_us / max(1, num_calls)
        share = num * each_us / 1e3 / use.step_ms
        if share < MOST:
            return ""
        called = f"{num:,.0f} operators of {each_us:.0f} us each take {format_share(share)} of the step"
        return f"{called}, mostly the cost of calling them: try a larger batch, or `torch.compile(model)`."
    bound = _what_bounds(use.device, use.window.scale)
    if bound == THE_DEVICE:
        return "To make a step shorter, give the device less to do: bfloat16 autocast, then `torch.compile(model)`."
    if bound != THE_HOST or _main_kind(run) != "launches":
        return ""
    graphs = "" if "graphs" in run.get(Launches).setup else '`torch.compile(model, mode="reduce-overhead")`, or '
    return f"To make a step shorter, let the host launch less: {graphs}a larger batch."


def _main_kind(run: Run) -> str:
    """What the host does most of the time in which the device waits for it."""
    causes = run.get(IdleCauses).causes
    return causes[0].kind if causes else ""


def _are_unlike(run: Run) -> bool:
    """True if steps change their length as the run goes on: those of a window do not stand for all."""
    slowdown = run.find(Slowdown, ThinEvidence)
    return slowdown is not None and not 1 / UNLIKE < slowdown.ratio < UNLIKE


def _parts(use: TimeUse, *, on_device: bool) -> tuple[list[Part], str]:
    """The largest first, and the whole that they are shares of."""
    root = use.window.paths.root
    on_device = on_device and any(path.device_ns for path in use.window.walk())
    spent = totals(root, lambda path: path.device_ns if on_device else path.own_ns)
    if not on_device:  # with what nothing recorded tells of
        spent[root] = max(spent[root], round(use.window.step_ms * use.window.num_steps * 1e6))
    lines, modules = _lines(use, on_device, spent), _modules(root, spent)
    parts = modules if modules and (not lines or lines[0][0] >= ONLY_ONE) else lines or _operators(use, spent)
    if not parts and use.device and (kernels := kernel_table(use)):  # of which no launch was recorded
        parts, on_device = _largest((float(row[5]) / 100, f"in {row[0]}") for row in kernels.rows), True
    return parts, "of the device's time" if on_device else "of the step"


def _bound(use: TimeUse, run: Run) -> str:
    """What a shorter step would need."""
    device = use.device
    if device is None:
        return _without_device(use.window)
    busy = format_share(device.busy_ns / device.span_ns)
    alone = device.exposed_ns / device.span_ns
    also = f" For {format_share(alone)} of it the device only communicates." if alone >= WORTH_SAYING else ""
    bound = _what_bounds(device, use.window.scale)
    unseen_ns, unseen = use.window.unseen_ns, format_ms(use.window.unseen_ns / 1e6)
    if unseen_ns > MOST * device.span_ns:
        return (
            f"The device is busy for {busy} of the step; for {unseen} it was at work that is not in this trace.{also}"
        )
    if unseen_ns > WORTH_SAYING * use.window.step_ms * 1e6:
        also = f" For {unseen} its work waited for other work, which is not of these steps or not in this trace.{also}"
    shares = busy_by_device(use.window.trace, *use.window.device_bounds)
    if bound == THE_DEVICE and len(shares) > 1 and (mean := sum(shares) / len(shares)) < BOUND_BY_DEVICE:
        return (
            f"One of {len(shares)} devices at least is busy for {busy} of the step, each for {format_share(mean)} on "
            f"average: they wait for each other.{also}"
        )
    if bound == THE_DEVICE:
        return (
            f"The device is busy for {busy} of the step: only less or faster work on it makes the step shorter.{also}"
        )
    if bound == UNCLEAR:
        why = f"the device is busy for {busy} of a profiled one, and those outside windows are of another length"
        return f"It is unclear what bounds the step: {why}.{also}"
    if bound == THE_HOST:
        does = DOES.get(_main_kind(run), "had launched nothing")
        return (
            f"The host bounds the step: the device is busy for {busy} of it, idle mostly while the host {does}.{also}"
        )
    why = {
        "launched, not begun": ", mostly between a launch and its kernel",
    }.get(bound, "; why, the trace does not tell")
    return f"The device is busy for {busy} of the step and idle for the rest{why}.{also}"


def _without_device(window: TraceWindow) -> str:
    """What a trace lacks of a device that it was made for; empty of a training on a CPU."""
    trace, said = window.trace, ""
    if window.unread_device:
        said = f"What its {window.unread_device} does is not read: times are the host's."
    elif np.any(trace.is_of(*LAUNCHES) & trace.matches(LAUNCH)):
        said = "The host launches work for a device, but none of that work is in the trace: times are the host's."
    calls = waiting_calls(trace)
    waits_ns = overlap_ns(spans_of(map(trace.span, calls.tolist())), *window.bounds)
    share = waits_ns / (window.step_ms * 1e6 * window.num_steps or 1)
    if share < WORTH_SAYING:
        return said
    spent = Counter[str]()
    for call in calls.tolist():
        spent[trace.text(call)] += int(trace.duration_ns[call])
    waits = format_ms(waits_ns / 1e6 / window.num_steps)
    return (
        f"{said} For {waits} of the step ({format_share(share)}) it waits in `{spent.most_common(1)[0][0]}`.".lstrip()
    )


def _what_bounds(device: DeviceUse, scale: float) -> str:
    """The device, or why it is mostly idle; unclear where a step outside windows says otherwise than a profiled one.

    What the profiler adds to a step is time in which the host has launched nothing yet.
    """
    found = set()
    for span_ns in (device.span_ns, device.span_ns * scale):
        idle = Counter[str](device.idle_ns)
        idle[THE_HOST] -= round(device.span_ns - span_ns)
        is_busy = device.busy_ns >= BOUND_BY_DEVICE * span_ns
        found.add(THE_DEVICE if is_busy else max(idle, key=lambda one: idle[one]))
    return found.pop() if len(found) == 1 else UNCLEAR


def _lines(use: TimeUse, on_device: bool, spent: dict[CallPath, int]) -> list[Part]:
    total = use.per_step_ms(spent[use.window.paths.root]) if on_device else use.step_ms
    parts = []
    for line in use.lines:
        stages = {name: ms for name, ms in line.stage_ms.items() if name not in ("forward", "other") and ms > 0}
        code = line.blame.text if len(line.blame.text) <= MAX_CODE else f"{line.blame.text[:MAX_CODE]}..."
        largest = Counter(stages).most_common(not on_device)
        of_it = "".join(f", {format_share(ms / max(ms, line.host_ms))} {name}" for name, ms in largest)
        name = f"at {line.blame} (`{code or line.blame.function}`{of_it})"
        parts.append(((line.device_ms if on_device else line.host_ms) / (total or 1.0), name))
    return _largest(parts)


def _modules(root: CallPath, spent: dict[CallPath, int]) -> list[Part]:
    """The classes of modules at the first depth at which there are several."""
    level = [root]
    while True:
        inside = defaultdict[str, list[CallPath]](list)
        for path in (module for outer in level for module in _modules_below(outer)):
            inside[INSTANCE.sub("", path.text)].append(path)
        sums = Counter({name: sum(spent[path] for path in paths) for name, paths in inside.items()})
        if not sums:
            return []
        name, most = sums.most_common(1)[0]
        if most < ONLY_ONE * sums.total():
            return _shares(sums, spent[root])
        level = inside[name]


def _modules_below(path: CallPath) -> Iterator[CallPath]:
    """The outermost modules within a path."""
    todo = list(path.below.values())
    while todo:
        one = todo.pop()
        if one.kind == "module":
            yield one
        else:
            todo.extend(one.below.values())


def _operators(use: TimeUse, spent: dict[CallPath, int]) -> list[Part]:
    """Operators and labels by what is spent under no other path, where a trace tells of nothing else."""
    root, sums = use.window.paths.root, Counter[str]()
    for path in root.walk():
        if path.kind in ("operator", "label"):
            sums[path.text] += spent[path] - sum(spent[below] for below in path.below.values())
    return _shares(sums, spent[root])


def _shares(sums: Counter[str], whole: int) -> list[Part]:
    return _largest((part / (whole or 1), f"in `{name}`") for name, part in sums.items())


def _largest(parts: Iterable[Part]) -> list[Part]:
    return sorted((part for part in parts if part[0] >= SMALLEST_TOLD), key=lambda part: -part[0])
