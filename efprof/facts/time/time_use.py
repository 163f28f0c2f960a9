"""Where a step's time goes, in tables and pictures: of a recorded run, or of anybody's trace."""

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Self

import numpy as np

from efprof.artifacts.trace.events import Array
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.facts.steps.step_times import StepTimes
from efprof.facts.time.call_paths import ON_DEVICE, by_launch
from efprof.facts.time.device_lanes import DeviceUse, kind_of, on_device_between
from efprof.facts.time.launching_lines import what_tells_lines
from efprof.facts.time.lean_times import timed_window
from efprof.facts.time.path_tree import CallPath
from efprof.facts.time.rank_times import RankTimes
from efprof.facts.time.step_pictures import nested_bars, one_step
from efprof.facts.time.trace_windows import TraceWindow
from efprof.model import STAGES, Evidence, Narrative, Numbers, Row, SourceLine, Table, UnreadableInput, frozen_dataclass
from efprof.units import format_ms

MIN_LINE = 1 / 500
"""Of a step: less is not told of a line."""
MAX_ROWS = 15
"""More rows than that nobody reads; what is left out is in the pictures."""
MAX_NAME, MAX_TEXT = 42, 60
"""Letters of a kernel's name and of shapes, so that the numbers beside them are seen."""
COMMON_PARTS = re.compile(r"^void |at::native::|\(anonymous namespace\)::|gpu_kernel_impl(_nocast)?<")
"""Of kernels' names, which tell nothing apart."""
SHAPES = "Input shapes"
MULTIPLIED = "\N{MULTIPLICATION SIGN}"


@frozen_dataclass
class LineUse:
    """One line or function of the user's, in milliseconds per step, on the host and on the device."""

    blame: SourceLine
    is_function: bool
    stage_ms: dict[str, float]
    """On the host, by stage."""
    device_ms: float

    @property
    def host_ms(self) -> float:
        return sum(self.stage_ms.values())

    @property
    def backward_ms(self) -> float:
        return self.stage_ms.get("backward", 0.0)


@frozen_dataclass
class TimeUse:
    """The window that tells it, and what was added up from it."""

    window: TraceWindow
    lines: tuple[LineUse, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """From a lean window, or the last full one; raises NotRecorded where no window holds a step."""
        window = timed_window(run)
        return cls(window=window, lines=_lines(window, run.get(Sources), _scales(run, window)))

    @property
    def device(self) -> DeviceUse | None:
        return self.window.device

    @property
    def step_ms(self) -> float:
        """The step outside windows where that is known, else as long as the profiler made it."""
        return self.window.step_ms * self.window.scale

    @property
    def told_lines(self) -> tuple[LineUse, ...]:
        """Those that take enough of a step."""
        return tuple(one for one in self.lines if one.host_ms + one.device_ms >= MIN_LINE * self.step_ms)

    def per_step_ms(self, nanoseconds: float) -> float:
        """Of the whole window, per step as the profiler made it."""
        return nanoseconds / 1e6 / self.window.num_steps


def time_evidence(run: Run) -> tuple[Evidence, ...]:
    """Pictures, tables, and how they are known; nothing where no trace was recorded."""
    use, sources = run.find(TimeUse, UnreadableInput), run.get(Sources)
    if use is None or not len(use.window.trace):
        return ()
    window = use.window
    to_ms = 1 / 1e6 / window.num_steps
    on_host = "From stage to your line to module to operator; each bar is as wide as what was spent under it."
    on_device = "The same paths, by what the kernels take that were launched under them."
    found: list[Evidence | None] = [
        nested_bars(window, sources, "Time on the host", on_host, _host, to_ms * window.scale),
        nested_bars(window, sources, "Time on the device", on_device, lambda path: path.device_ns, to_ms),
        one_step(window),
        _rank_table(run),
        _device_numbers(use),
        _line_table(use),
        _operator_table(use),
        kernel_table(use),
        _how_known(use),
    ]
    return tuple(one for one in found if one is not None)


def _host(path: CallPath) -> int:
    """What was spent beside everything recorded is no path of its own."""
    return path.own_ns if path.above is not None else 0


def _scales(run: Run, window: TraceWindow) -> dict[str, float]:
    """By stage: what makes its time in the window that of a usual step, so that lines agree with stages.

    A traced step is one of few, often of the first ones; the median stage of all full steps is no such accident.
    """
    times = run.find(StepTimes)
    if times is None or not times.steady or run.is_foreign:
        return {}
    traced_ms = defaultdict[str, float](float)
    for path in window.walk():
        traced_ms[path.stage] += _host(path) / 1e6 / window.num_steps
    light = times.median_ms() / statistics.median(time.total_ms for time in times.steady)
    usual_ms = {stage: light * statistics.median(time.of(stage) for time in times.steady) for stage in STAGES}
    return {stage: usual_ms[stage] / ms for stage, ms in traced_ms.items() if ms and usual_ms.get(stage)}


def _lines(window: TraceWindow, sources: Sources, scales: Mapping[str, float]) -> tuple[LineUse, ...]:
    to_ms, found = 1 / 1e6 / window.num_steps, []
    for (kind, _), paths in window.lines.items():
        stage_ms = defaultdict[str, float](float)
        for path in paths:
            stage_ms[path.stage] += path.own_ns * to_ms * scales.get(path.stage, window.scale)
        blame, device_ms = sources.line(paths[0].text), sum(path.device_ns for path in paths) * to_ms
        found.append(LineUse(blame=blame, is_function=kind == "function", stage_ms=stage_ms, device_ms=device_ms))
    return tuple(sorted(found, key=lambda line: (-line.host_ms - line.device_ms, line.blame.key)))


def _line_table(use: TimeUse) -> Table | None:
    on_device = any(line.device_ms for line in use.lines)
    shown = use.told_lines[:MAX_ROWS]
    if not shown:
        return None
    rows: list[Row] = []
    for line in shown:
        text = f"`{line.blame}` in `{line.blame.function}`" if line.is_function else f"`{line.blame}`"
        code = "outside of its calls" if line.is_function else f"`{line.blame.text}`" * bool(line.blame.text)
        device = (line.device_ms,) if on_device else ()
        own_ms = line.host_ms - line.backward_ms
        rows.append((text, code, own_ms, line.backward_ms, *device, 100 * line.host_ms / use.step_ms))
    columns = {"Line": "", "Code": "", "Own": "ms", "Backward": "ms"} | ({"Device": "ms"} if on_device else {})
    return Table.of("Your lines, per step", columns | {"Of the step": "percent"}, rows)


def _operator_table(use: TimeUse) -> Table | None:
    """The outermost operators, with all that runs inside them."""
    spent = defaultdict[str, Array](lambda: np.zeros(3))
    for path in use.window.walk():
        if path.kind == "operator":
            spent[path.text] += (path.count, path.own_ns, path.device_ns)
    on_device = any(total[2] for total in spent.values())
    # Of each operator's inputs those that it has most often.
    trace, rows = use.window.trace, list[Row]()
    places, codes = trace.sparse.get("shapes", (np.empty(0, np.int32),) * 2)
    pairs = trace.name_code[places].astype(np.int64) * len(trace.texts) + codes
    _, first, counts = np.unique(pairs, return_index=True, return_counts=True)
    by_count = places[first[np.argsort(counts, kind="stable")]].tolist()
    shapes = {trace.text(event): _said(trace.input_shapes(event)) for event in by_count}
    for name, total in sorted(spent.items(), key=lambda item: -item[1][1:].sum())[:MAX_ROWS]:
        count, host_ns, device_ns = total.tolist()
        host_ms = use.per_step_ms(host_ns) * use.window.scale
        device = (use.per_step_ms(device_ns),) if on_device else ()
        times = (count / use.window.num_steps, host_ms, *device, 100 * host_ms / use.step_ms)
        rows.append((f"`{name}`", *times, shapes.get(name, "")))
    columns = {"Operator": "", "Calls": "count", "Host": "ms"} | ({"Device": "ms"} if on_device else {})
    return Table.of("Operators, per step", columns | {"Of the step": "percent", SHAPES: ""}, rows) if rows else None


def _said(shapes: Iterable[tuple[int, ...]]) -> str:
    """Without numbers and what else has none."""
    text = ", ".join(MULTIPLIED.join(map(str, shape)) for shape in shapes if shape)
    return f"{text[:MAX_TEXT]}..." if len(text) > MAX_TEXT else text


def kernel_table(use: TimeUse) -> Table | None:
    """Those that take most; None where none ran."""
    trace = use.window.trace
    on_device = np.flatnonzero(trace.is_of(*ON_DEVICE))
    kernels = on_device[[event in use.window.paths.of_event for event in on_device.tolist()]]
    if not len(kernels):  # where no launch was recorded, by when they ran
        kernels = on_device_between(trace, *use.window.bounds)
    if not len(kernels):
        return None
    _, first, names, counts = np.unique(
        trace.name_code[kernels], return_index=True, return_inverse=True, return_counts=True
    )
    spent = np.bincount(names, trace.duration_ns[kernels])
    launching = _launching(use, kernels.tolist())
    whole_ns = max(1, int(trace.duration_ns[kernels].sum()))
    rows: list[Row] = []
    for place in np.argsort(-spent, kind="stable")[:MAX_ROWS].tolist():
        kernel, spent_ns = int(kernels[first[place]]), float(spent[place])
        name = trace.text(kernel)
        launched_by, shapes = launching.get(name, ("", ""))
        times = (int(counts[place]) / use.window.num_steps, use.per_step_ms(spent_ns), 100 * spent_ns / whole_ns)
        shown = f"`{COMMON_PARTS.sub('', name)[:MAX_NAME]}`"
        rows.append((shown, kind_of(trace, kernel), launched_by, *times, shapes))
    columns = {"Kernel": "", "Kind": "", "Launched by": "", "Calls": "count", "Device": "ms", "Of all": "percent"}
    return Table.of("Kernels, per step", columns | {SHAPES: ""}, rows)


def _launching(use: TimeUse, kernels: list[int]) -> dict[str, tuple[str, str]]:
    """For each kernel's name the operator with the shapes of inputs by which it is launched most often."""
    trace, paths = use.window.trace, use.window.paths
    launch_of = by_launch(trace, np.arange(len(trace)))
    found = defaultdict[str, Counter[tuple[str, str]]](Counter)
    for kernel in kernels:
        path = paths.of_event.get(kernel)
        operator = path.nearest("operator") if path else None
        if operator is not None:
            event = launch_of.get(int(trace.id[kernel]))
            while event is not None and trace.text(event) != operator.text:  # not what that calls, of other shapes
                event = paths.outer.get(event)
            shapes = "" if event is None else _said(trace.input_shapes(event))
            found[trace.text(kernel)][f"`{operator.text}`", shapes] += 1
    return {name: operators.most_common(1)[0][0] for name, operators in found.items()}


def _rank_table(run: Run) -> Table | None:
    """A row for each rank: its step, and what its device does in it; None where there is one rank."""
    ranks = run.get(RankTimes).ranks if run.is_foreign else {}
    if len(ranks) < 2:
        return None
    rows: list[Row] = []
    for rank, one in ranks.items():
        num_steps, use, spent = len(one.steps_ns), one.device, Row(("",) * 5)
        if use is not None:
            communicates, idle_ns = use.kind_ns["communication"], use.span_ns - use.busy_ns
            spent_ns = (use.busy_ns, use.kind_ns["compute"], communicates, use.exposed_ns, idle_ns)
            spent = tuple(part / 1e6 / num_steps for part in spent_ns)
        rows.append((str(rank), float(num_steps), one.step_ms, *spent))
    times = dict.fromkeys(("Step", "Busy", "Computes", "Communicates", "Nothing else runs", "Idle"), "ms")
    return Table.of("Ranks, per step", {"Rank": "", "Steps": "count"} | times, rows)


def _device_numbers(use: TimeUse) -> Numbers | None:
    device = use.device
    if device is None:
        return None
    alone, idle = device.exposed_ns, {f"idle: {cause}": spent for cause, spent in device.idle_ns.items()}
    spent_ns = {"busy": device.busy_ns, **device.kind_ns, "communication while nothing else runs": alone, **idle}
    rows = ((what, use.per_step_ms(spent), "ms") for what, spent in spent_ns.items() if spent)
    return Numbers.of("The device, per step", *rows)


def _how_known(use: TimeUse) -> Narrative:
    window = use.window
    which = window.span if window.has_steps else "the whole trace as one step"
    source = f"From {window.name}: {which}."
    if window.steady_ms:
        source += (
            f" Profiling made a step {format_ms(window.step_ms)} long, outside windows it takes "
            f"{format_ms(window.steady_ms)}: times of the host are scaled to that, times of a device are as measured. "
            "Scaling takes the profiler to slow everything alike; it slows many short calls more than a few long ones."
        )
    else:
        source += " How much the profiler slowed it is not known: times are as it recorded them."
    paragraphs = [source]
    if ours := use.per_step_ms(window.paths.recorder_ns):
        paragraphs.append(f"Functions of the recorder took {format_ms(ours)} of a profiled step and are left out.")
    if window.paths.unlaunched_ns:
        lost = format_ms(use.per_step_ms(window.paths.unlaunched_ns))
        paragraphs.append(f"Kernels of {lost} per step have no launch in the trace: they have a lane, but no line.")
    if num_unreadable := window.trace.num_unreadable:
        paragraphs.append(f"Events that cannot be read, {num_unreadable:,} of them, are left out.")
    if not window.steady_ms:  # what a trace from elsewhere lacks, with the flag of torch's profiler that records it
        if not window.lines:
            paragraphs.append(what_tells_lines(window))
        if "shapes" not in window.trace.sparse:
            paragraphs.append("No shapes were recorded: `record_shapes=True`.")
        if "[memory]" not in window.trace.texts:
            paragraphs.append("No allocations were recorded: `profile_memory=True`.")
        if not window.has_steps:
            paragraphs.append("No steps were recorded: call `profiler.step()` after each.")
    return Narrative(title="How this is known", paragraphs=tuple(paragraphs))
