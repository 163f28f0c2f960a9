"""The traces of a run, ours or from elsewhere, each with its steps and the paths that its time was spent under."""

import os
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from efprof.artifacts.events import WindowOpened, events_of
from efprof.artifacts.files import numbered_files
from efprof.artifacts.trace.blocks import leading_header, told_until_us
from efprof.artifacts.trace.columns import COMPLETE, Trace
from efprof.artifacts.trace.events import Array
from efprof.artifacts.trace.read import lean_paths, read_window, trace_paths
from efprof.facts.run.run import Run
from efprof.facts.source.sources import COMPREHENSION, FRAME, Sources, place_of
from efprof.facts.steps.step_times import StepTimes
from efprof.facts.time.call_paths import (
    HOST,
    ON_DEVICE,
    OPERATORS,
    STEP_LABEL,
    CallPaths,
    SitesOf,
    by_launch,
    call_paths,
    outermost,
)
from efprof.facts.time.device_lanes import (
    DeviceUse,
    IdleGap,
    device_use,
    idle_gaps,
    on_device_between,
    overlap_ns,
    union,
)
from efprof.facts.time.path_tree import CallPath, Kind, Line, Parts, paths_by_line
from efprof.model import NotRecorded, UnreadableInput, frozen_dataclass
from efprof.units import format_bytes, format_share

LIBRARIES = frozenset({
    "IPython", "PIL", "_pytest", "accelerate", "apex", "bitsandbytes", "click", "cv2", "datasets", "deepspeed",
    "detectron2", "diffusers", "efprof", "einops", "fairscale", "flash_attn", "flashinfer", "huggingface_hub",
    "hydra", "ignite", "ipykernel", "ipykernel_launcher", "jax", "kornia", "lightning", "lightning_fabric",
    "megatron", "mlflow", "mmcv", "mmengine", "monai", "networkx", "numba", "numpy", "omegaconf", "pandas", "peft",
    "pluggy", "pyarrow", "pytorch_lightning", "ray", "safetensors", "scipy", "sentence_transformers", "sklearn",
    "sympy", "tensorboard", "timm", "tokenizers", "torch", "torch_geometric", "torchao", "torchaudio", "torchdata",
    "torchmetrics", "torchtext", "torchvision", "tornado", "tqdm", "traitlets", "transformer_engine",
    "transformers", "triton", "trl", "unsloth", "vllm", "wandb", "xformers", "yaml",
})  # fmt: skip
"""What a user trains with, by the top-level package: frames of it are no lines of theirs. `--own` takes one out."""
UNNAMED = ("torch", "triton", "efprof")
FSDP = "torch/distributed/fsdp/_runtime_utils.py"
INSTALLED = re.compile(r".*/(?:site|dist)-packages/|.*/lib(?:64)?/python3\.\d+t?/", re.IGNORECASE)
MODULE = "<module>"
NOTEBOOK = "<ipython-input"
FOREIGN_TRACE = "trace-1.json.gz"
LONG, MIN_LEFT = 3.0, 2
"""First calls load modules, choose algorithms and ask the driver for memory: one step took 1,022 ms, the others 25."""
LONG_QUEUE_NS = 5_000_000
"""From a launch to its kernel: with nothing before it in the queue it takes microseconds."""
Span = tuple[int, int]
"""Nanoseconds at which something began and ended."""

UNREAD = re.compile(r"^(mtia|hpu)_(runtime|ccp_events|op)$")
"""Categories of Kineto's."""
OF_TRAINING = re.compile(r"backward|^autograd::|AccumulateGrad|^Optimizer\.", re.IGNORECASE)
MIN_OPERATORS = 20
"""Fewer may be a piece of a training."""
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")


@dataclass(frozen=True, kw_only=True)
class TraceWindow:
    """The trace in the file at `path`; `steps` are the nanoseconds in which each step began and ended, and `numbers`
    which they are.

    There is one step, of everything, where the trace does not tell its steps apart; then `has_steps` is False.
    """

    name: str
    path: Path = Path()
    read: Callable[..., Trace]
    steps: tuple[Span, ...]
    numbers: tuple[int, ...]
    has_steps: bool
    sites_of: SitesOf
    steady_ms: float | None = None
    """The median of the run's steps outside windows, where they are known."""
    warm_up: tuple[Span, ...] = ()
    """Steps before these, which hold first calls: no share is of them."""
    whole_ns: int = 0
    """How long the one step is of which a part was read; 0 where all steps are whole."""

    @cached_property
    def trace(self) -> Trace:
        """Read when it is first asked for; raises UnreadableInput."""
        return self.read()

    @cached_property
    def paths(self) -> CallPaths:
        """The paths of all steps together."""
        return call_paths(self.trace, *self.bounds, self.sites_of)

    def walk(self) -> Iterator[CallPath]:
        """Each of these paths, an outer one before its inner ones."""
        return self.paths.root.walk()

    @cached_property
    def lines(self) -> dict[Line, list[CallPath]]:
        """The same by the user's lines and functions; empty where no Python was recorded."""
        return paths_by_line(self.paths.root)

    @cached_property
    def device(self) -> DeviceUse | None:
        """What the devices do in these steps; None where nothing of a device was recorded, or none of it is read."""
        return None if self.unread_device else device_use(self.trace, *self.device_bounds)

    @property
    def unread_device(self) -> str:
        """What a trace is of whose events do not tell when the device is busy; empty of all others."""
        kinds = {text.partition("_")[0] for text in self.trace.texts if UNREAD.match(text)}
        return min(kinds, default="").upper()

    @property
    def is_inference(self) -> bool:
        """Whether many operators and none of a backward pass or an optimizer are in it."""
        is_many = int(np.count_nonzero(self.trace.is_of(*OPERATORS))) >= MIN_OPERATORS
        return is_many and not any(map(OF_TRAINING.search, self.trace.texts))

    @cached_property
    def gaps(self) -> list[IdleGap]:
        """When the devices have nothing to do."""
        return idle_gaps(self.trace, *self.device_bounds)

    @property
    def unseen_ns(self) -> int:
        """How long what was launched waited for work that the trace does not have, or has from before its steps."""
        waits = (gap.length_ns for gap in self.gaps if gap.cause == "launched, not begun")
        start_ns, begin_ns = self.bounds[0], self.device_bounds[0]
        before = on_device_between(self.trace, start_ns, begin_ns) if begin_ns > start_ns else np.empty(0, np.int64)
        seen_ns = overlap_ns(union(self.trace.start_ns[before], self.trace.end_ns[before]), start_ns, begin_ns)
        return begin_ns - start_ns - seen_ns + sum(ns for ns in waits if ns > LONG_QUEUE_NS)

    @cached_property
    def device_bounds(self) -> Span:
        """From when the devices come to these steps to when they are done: a kernel is of the step that launched it."""
        trace, (start_ns, end_ns) = self.trace, self.bounds
        launch_of = by_launch(trace, trace.start_ns)
        events = np.flatnonzero(trace.is_of(*ON_DEVICE))
        launched_ns = np.array([launch_of.get(number, -1) for number in trace.id[events].tolist()], np.int64)
        theirs = events[(start_ns <= launched_ns) & (launched_ns < end_ns)]
        if not len(theirs):
            return start_ns, end_ns
        first_ns, last_ns = int(trace.start_ns[theirs].min()), int(trace.end_ns[theirs].max())
        first = theirs[trace.start_ns[theirs].argmin()]
        before = events[launched_ns < start_ns]
        is_behind = bool(((trace.end_ns[before] > start_ns) & (trace.start_ns[before] < first_ns)).any())
        # Behind work that is not in the trace, which begins in the midst of it.
        is_behind |= first_ns - launch_of[int(trace.id[first])] > LONG_QUEUE_NS
        following = trace.start_ns[events[launched_ns >= end_ns]]
        until_ns = int(following.min()) if len(following) else max(last_ns, end_ns)
        begin_ns = first_ns if is_behind else start_ns
        return begin_ns, max(until_ns, begin_ns + 1)

    @property
    def bounds(self) -> Span:
        """When the first step began and the last one ended."""
        return self.steps[0][0], self.steps[-1][1]

    @property
    def span(self) -> str:
        first, last = self.numbers[0], self.numbers[-1]
        if self.whole_ns:
            return f"the first {format_share(self.num_steps)} of step {first}"
        return f"steps {first} to {last}" if first < last else f"step {first}"

    @property
    def middle(self) -> float:
        return (self.numbers[0] + self.numbers[-1]) / 2

    @property
    def num_steps(self) -> float:
        """How many steps its times are of; a part of one that was read in part."""
        return (self.steps[0][1] - self.steps[0][0]) / self.whole_ns if self.whole_ns else len(self.steps)

    @property
    def step_ms(self) -> float:
        """The mean step, as long as the profiler made it."""
        return sum(end - start for start, end in self.steps) / 1e6 / self.num_steps

    @property
    def scale(self) -> float:
        """Milliseconds of a steady step for one of the window."""
        return self.steady_ms / self.step_ms if self.steady_ms else 1.0


@frozen_dataclass
class TraceWindows:
    """The traces of the rank that hold at least one step, earliest first; lean ones by the name of the one before.

    A lean one was recorded without stacks, shapes and memory: its times alone tell something.
    """

    windows: tuple[TraceWindow, ...]
    lean: dict[str, TraceWindow]
    unread: tuple[str, ...] = ()
    """What the report leaves out, since there is too much of it."""

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Find the traces, from the first on as far as `max_trace_bytes` go; raises NotRecorded where there is none."""
        if run.is_foreign:
            return cls(windows=_of_first_readable(run), lean={})
        paths = trace_paths(run.rank_folder)
        window_of = partial(_recorded_window, run, partial(read_window, num_processes=run.num_processes))
        windows, unread, left_bytes = list[TraceWindow](), list[str](), run.max_trace_bytes
        lean: dict[str, TraceWindow] = {}
        after = {name: [path] for name, path in lean_paths(run.rank_folder).items()}
        for window in filter(None, map(window_of, paths)):
            both = [window, *filter(None, map(window_of, after.get(window.name, ())))]
            num_bytes = sum(one.path.stat().st_size for one in both)
            share, left_bytes = left_bytes / num_bytes, left_bytes - num_bytes
            if share < 1:
                both = [] if windows else [_begin(one, share) for one in both]
                both = both[:1] if any(one.whole_ns for one in both) else both
                what = both[0].span if both else "nothing"
                unread.append(f"{format_bytes(num_bytes)} of {window.span} were traced, too much: {what} is read.")
            windows += both[:1]
            lean |= zip([window.name], both[1:], strict=False)
        return cls(windows=tuple(windows), lean=lean, unread=tuple(unread))


def _begin(window: TraceWindow, share: float) -> TraceWindow:
    """Its first whole steps, or the begin of the first one."""
    until_us, base_ns = told_until_us(window.path, share), leading_header(window.path).base_ns
    until_ns, (start_ns, end_ns) = base_ns + round(until_us * 1000), window.steps[0]
    whole = tuple(step for step in window.steps if step[1] <= until_ns)
    steps = whole or ((start_ns, max(start_ns + 1, until_ns)),)
    return replace(
        window,
        read=partial(window.read, until_us=(steps[-1][1] - base_ns) / 1000),
        steps=steps,
        numbers=window.numbers[: len(steps)],
        whole_ns=0 if whole else end_ns - start_ns,
    )


def _recorded_window(run: Run, read: Callable[[Path], Trace], path: Path) -> TraceWindow | None:
    name, times = path.name.split(".")[0], run.get(StepTimes)
    opened = [event.step for event in events_of(run.rank_folder, WindowOpened) if event.window == name]
    first = (opened or [0])[-1]  # steps of one that was dropped may have its name too
    steps = [time for time in times.every if time.record.window == name and time.step >= first]
    bounds = [(time.record.started_ns, time.record.started_ns + round(time.total_ms * 1e6)) for time in steps]
    if not steps:
        return None
    return TraceWindow(
        name=name,
        path=path,
        read=partial(read, path),
        steps=tuple(bounds),
        numbers=tuple(time.step for time in steps),
        has_steps=True,
        sites_of=_recorded_sites(run.get(Sources)),
        steady_ms=times.median_ms() if times.steady else None,
    )


def _of_first_readable(run: Run) -> tuple[TraceWindow, ...]:
    """The traces of the first rank that has one; raises the first's UnreadableInput, or NotRecorded, where none has."""
    errors = []
    for folder in run.rank_folders:
        found, paths = list[TraceWindow](), numbered_files(folder, "trace", ".json.gz")
        for path in paths:
            try:
                window = foreign_window(read_window(path.resolve()), run.own_packages)
            except UnreadableInput as error:
                errors.append(error)
            else:
                name = window.name if len(paths) == 1 else path.resolve().name
                found.append(replace(window, path=path, name=name))
        if found:
            return tuple(found)
    raise next(
        iter(errors), NotRecorded(f"{FOREIGN_TRACE} is missing; give a trace of torch's profiler to see its time.")
    )


def _recorded_sites(sources: Sources) -> SitesOf:
    """What was recorded of a call: the line it was made from, and the user's function that it runs."""
    known: dict[str, str] = {}

    def sites_of(name: str, call_site: str | None, _: str | None) -> Parts:
        found: list[tuple[Kind, str]] = []
        # The outermost frame, there before the profiler, is its own caller: it has gone on from that line since.
        is_own_caller = call_site is not None and name.endswith(MODULE) and call_site.endswith(MODULE)
        if call_site is not None and not is_own_caller and sources.is_user_code(call_site):
            found.append(("line", known.setdefault(place_of(call_site), call_site)))
        # A comprehension's frame belongs to the line it is written in, which its call site names.
        functions = (site for site in sources.sites_of_frame(name) if not COMPREHENSION.search(site))
        found += [("function", site) for site in functions][:1]
        return tuple(found)

    return sites_of


def foreign_window(trace: Trace, own_packages: frozenset[str] = frozenset()) -> TraceWindow:
    """A trace that something else recorded, with the steps that it tells of itself; raises UnreadableInput."""
    if not (trace.phase == COMPLETE).any():
        raise UnreadableInput(f"{trace.path} is a profiler trace of nothing: profile a step, and give that trace.")
    if not trace.is_of(*HOST, *ON_DEVICE).any():
        raise UnreadableInput(f"{trace.path} is another tool's trace: give one of torch.profiler.")
    is_label = trace.is_of("user_annotation")
    if not is_label.any():  # files of 2021 call them operators
        is_label = trace.is_of("operator") & (trace.matches(STEP_LABEL) | trace.matches(OPTIMIZER_STEP))
    labels = np.flatnonzero(is_label)
    steps, has_steps = _steps_in(trace, labels)
    names = dict.fromkeys(map(trace.text, labels.tolist()))
    told = [int(label[1]) for label in map(STEP_LABEL.match, names) if label]
    numbers = tuple(told) if len(told) == len(steps) else tuple(range(len(steps)))
    num_first = num_warming_up([end - start for start, end in steps])
    return TraceWindow(
        name="the trace",
        read=lambda: trace,
        steps=steps[num_first:],
        numbers=numbers[num_first:],
        warm_up=steps[:num_first],
        has_steps=has_steps,
        sites_of=_frame_sites(own_packages),
    )


def num_warming_up(lengths_ns: Sequence[int]) -> int:
    """How many steps at the start take over three times the median of those after them; a long one later is a fault."""
    number = 0
    while number < len(lengths_ns) - MIN_LEFT and lengths_ns[number] > LONG * statistics.median(
        lengths_ns[number + 1 :]
    ):
        number += 1
    return number


def _steps_in(trace: Trace, labels: Array) -> tuple[tuple[Span, ...], bool]:
    """Where each step of a trace begins and ends, and whether the trace says so itself.

    By the profiler's own label, else by the ends of what an optimizer does, else by the label of the user's that
    repeats and takes most; else all of it is one step. Of labels within each other the outermost count.
    """
    events = np.flatnonzero(trace.is_of(*HOST, *ON_DEVICE))
    events = events if len(events) else np.flatnonzero(trace.phase == COMPLETE)
    whole = int(trace.start_ns[events].min()), int(trace.end_ns[events].max())
    if steps := _outermost(trace, labels[trace.matches(STEP_LABEL)[labels]]):
        return _until_the_next(steps), True
    updates = _outermost(trace, labels[trace.matches(OPTIMIZER_STEP)[labels]])
    if len(updates) > 1:
        ends = [end for _, end in updates]
        return tuple(zip([whole[0], *ends[:-1]], ends, strict=True)), True
    names = trace.name_code[labels]
    every = (_outermost(trace, labels[names == name]) for name in np.unique(names))
    repeated = [spans for spans in every if len(spans) > 1]
    length, longest = max(((sum(end - start for start, end in spans), spans) for spans in repeated), default=(0, []))
    if length * 2 > whole[1] - whole[0]:
        return _until_the_next(longest), True
    return (whole,), False


def _outermost(trace: Trace, events: Array) -> list[Span]:
    """Where those that lie in no other begin and end."""
    return [*map(trace.span, events[outermost(trace, events)].tolist())]


def _until_the_next(spans: list[Span]) -> tuple[Span, ...]:
    """A step lasts until the next one begins; the last one until its label ends."""
    ends = [start for start, _ in spans[1:]] + [spans[-1][1]]
    return tuple((start, end) for (start, _), end in zip(spans, ends, strict=True))


def _frame_sites(own_packages: frozenset[str]) -> SitesOf:
    """What a trace from elsewhere tells: functions by their first line, or call stacks, which have the exact line."""

    def sites_of(name: str, _: str | None, call_stack: str | None) -> Parts:
        if call_stack:
            frames = [user_frame(frame, own_packages) for frame in reversed(call_stack.split(";"))]
            return tuple(("line", frame) for frame in frames if frame)
        frame = user_frame(name, own_packages)
        return (("function", frame),) if frame else ()

    return sites_of


def user_frame(name: str, own_packages: frozenset[str] = frozenset()) -> str | None:
    """`train.py(12): step` as `train.py:12:step`; None of a library's, Python's own, or what is no frame."""
    frame = _frame_of(name)
    return None if frame is None or (frame.is_library and frame.package not in own_packages) else frame.site


def library_frame(name: str) -> str | None:
    """The same of a frame that is not the user's; None of Python's own, and of torch's but for FSDP's."""
    frame = _frame_of(name)
    is_named = frame and (frame.package not in UNNAMED or frame.site.startswith(FSDP))
    return frame.site if frame and is_named and not frame.is_of_python else None


class _Frame(NamedTuple):
    site: str
    package: str
    is_library: bool
    is_of_python: bool


def _frame_of(name: str) -> _Frame | None:
    frame = FRAME.fullmatch(name.strip())
    if frame is None or (frame["file"].startswith("<") and not frame["file"].startswith(NOTEBOOK)):
        return None
    path = frame["file"].replace("\\", "/")
    installed = INSTALLED.match(path)
    file = path[installed.end() :] if installed else path.removeprefix("./")
    first, *inner = file.split("/")
    package = first.removesuffix(".py")
    # A folder may have the name of a module of Python's: it is Python's own only if that is a folder too.
    is_of_python = package in sys.stdlib_module_names and (not inner or (Path(os.__file__).parent / package).is_dir())
    is_library = bool(installed) or package in LIBRARIES or is_of_python
    return _Frame(f"{file}:{frame['line']}:{frame['function']}", package, is_library, is_of_python)
