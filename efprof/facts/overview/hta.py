"""What HolisticTraceAnalysis (HTA) says of the same traces, where it is asked for: the one place that knows it.

It runs in a process of its own. Its traps that are kept away from here: its rounding makes times of
nanoseconds negative; it counts waits (`cuda_sync`) and Triton's operators as work of the device, and calls each step
bound by the CPU without waits; what ends in `.gz` must be packed; its sums by kind of kernel lose fractions of
microseconds, and where it groups kernels their means are sums.
"""

import logging
import os
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from efprof.artifacts.engine import in_processes
from efprof.artifacts.trace.blocks import size_of
from efprof.facts.run.run import Run
from efprof.facts.time.call_paths import ON_DEVICE
from efprof.facts.time.time_use import MAX_ROWS, TimeUse
from efprof.model import Narrative, NotRecorded, Table, UnreadableInput

PACKAGE = "traceinsight"
COUNTERS = "cuda_profiler_range"
COUNTER = re.compile(r"\w+__\w+\.\w+")
"""NVIDIA names one so: `smsp__sass_thread_inst_executed_op_ffma_pred_on.sum`."""
MAX_PER_COUNTER = 5
MAX_TOLD = 200
LONGEST_S = 900
"""It takes 50 s for 314 MB; it has hung."""
FAILURES = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError, OSError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
COLUMNS = {
    "stream": ("Stream", ""), "idle_category": ("Cause", ""), "idle_time": ("Idle", "ms"),
    "kernel_time(us)": ("First to last kernel", "ms"), "idle_time(us)": ("Idle", "ms"),
    "compute_time(us)": ("Computes", "ms"), "non_compute_time(us)": ("Other work", "ms"),
    "idle_time_pctg": ("Idle of all", "percent"), "comp_comm_overlap_pctg": ("Of all communication", "percent"),
    "counter": ("Counter", ""), "name": ("Kernel", ""), "bottom_level_op": ("Operator", ""),
    "value": ("Mean", "count"), "kernel_type": ("Kind", ""), "sum (us)": ("All", "ms"), "mean (us)": ("Mean", "ms"),
    "max (us)": ("Longest", "ms"), "bound_by": ("Bound by", ""), "duration": ("Of the path", "percent"),
}  # fmt: skip
"""Those of HTA's columns that are shown: their headings, and our units of them."""
KNOWN = (
    "By HolisticTraceAnalysis {}, of the whole trace and not per step. Its rounding to microseconds is off; waits and "
    "Triton's operators, which it takes for work of the device, were left out, waits for all but the critical path. "
    "Where there are several steps, it leaves out kernels whose launch was not recorded."
)
NOT_INSTALLED = "HolisticTraceAnalysis is not installed here: `pip install 'traceinsight<0.7' 'pandas<3'`."
NO_PATH = (
    "The critical path is left out: HTA knows what waits for what by `cuda_sync` events, of which the trace has none. "
    "`experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)` records them."
)


def hta_evidence(run: Run) -> tuple[Table | Narrative, ...]:
    """HTA's tables of the trace that the page shows, and how they are known or why they are missing.

    Nothing without a device. Raises NotRecorded without a trace, UnreadableInput.
    """
    shown = run.get(TimeUse).window.trace
    if not np.any(shown.is_of(*ON_DEVICE, COUNTERS)):
        return ()
    try:
        known = KNOWN.format(version(PACKAGE))
    except PackageNotFoundError:
        return (Narrative(title="HTA", paragraphs=(NOT_INSTALLED,)),)
    tables, missing = _asked(shown.path)
    return (*tables, Narrative(title="HTA", paragraphs=(*[known][: len(tables)], *missing)))


def _asked(path: Path) -> tuple[list[Table], list[str]]:
    """Its tables, and a sentence for each that is missing."""
    with TemporaryDirectory(prefix="efprof-hta-") as folder:
        try:
            (found,) = in_processes([("what HTA says", partial(_ask, path, Path(folder)))], 1)
        except RuntimeError as error:
            return [], [f"HTA broke off: {str(error)[:MAX_TOLD]}."]
    return ([], [str(found)]) if isinstance(found, UnreadableInput) else found


def _ask(path: Path, folder: Path) -> tuple[list[Table], list[str]]:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LONGEST_S)
    for output in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    tables = list[Table]()
    missing = list[str]()
    named = folder / ("trace.json.gz" if size_of(path)[0] else "trace.json")
    named.symlink_to(path)
    for title, frame_of in _analyses(_loaded(named)):
        try:
            tables.append(_table(title, frame_of()))
        except NotRecorded as absent:
            missing.append(str(absent))
        except FAILURES as error:
            missing.append(f"{title}: HTA broke off: {type(error).__name__}, {str(error)[:MAX_TOLD]}.")
    return [table for table in tables if table.rows], missing


def _loaded(path: Path) -> Any:
    """HTA's own object, with the one rank 0."""
    from hta.configs.env_options import HTAEnvOptions
    from hta.trace_analysis import TraceAnalysis

    HTAEnvOptions.instance().set_disable_ns_rounding(True)
    return TraceAnalysis(trace_files={0: str(path)}, include_last_profiler_step=True)


def _analyses(hta: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Those that the trace has something for: a title, and what makes HTA's table."""
    categories = hta.t.symbol_table.get_sym_id_map()
    device, frame = copy(hta), hta.t.traces[0]
    device.t = copy(hta.t)
    on_device = frame["cat"].isin([code for name, code in categories.items() if name.lower() in ON_DEVICE])
    device.t.traces = {0: frame[on_device | frame["stream"].eq(-1)]}
    if on_device.any():
        yield "Time of the device", lambda: device.get_temporal_breakdown(visualize=False)
        yield "Idle time of each stream", lambda: device.get_idle_time_breakdown([0], visualize=False)[0]
        yield "Kernels", lambda: device.get_gpu_kernel_breakdown(False, num_kernels=len(frame))[1]
        yield "Communication while kernels compute", lambda: device.get_comm_comp_overlap(visualize=False).dropna()
    yield "Critical path of one step", lambda: _critical_path(hta, "cuda_sync" in categories)
    if COUNTERS in categories:
        yield "Hardware counters", lambda: _counters(hta)


def _critical_path(hta: Any, has_waits: bool) -> Any:
    """Of the step in the middle, or of the whole trace where it has no steps."""
    if not has_waits:
        raise NotRecorded(NO_PATH)
    steps = hta.get_profiler_steps()
    found = hta.critical_path_analysis(0, "ProfilerStep" if len(steps) else "", len(steps) // 2)
    if found is None or not found[1]:
        raise ValueError("it found none")
    shares = found[0].summary().sort_values(ascending=False)
    return shares[shares.round(1) > 0].reset_index()


def _counters(hta: Any) -> Any:
    """For each counter the kernels with the highest mean."""
    (frame,) = hta.get_cupti_counter_data_with_operators(ranks=[0])
    keys = ["counter", "name", "bottom_level_op"]
    melted = frame.melt(keys[1:], list(filter(COUNTER.fullmatch, frame.columns)), "counter")
    means = melted[melted["value"] > 0].groupby(keys)["value"].mean().sort_values(ascending=False)
    return means.groupby("counter").head(MAX_PER_COUNTER).reset_index().sort_values("counter", kind="stable")


def _table(title: str, frame: Any) -> Table:
    """HTA's times are in microseconds, ours in milliseconds."""
    names = [name for name in COLUMNS if name in frame.columns]
    longest = [name for name in ("idle_time", "sum (us)") if name in names]
    frame = frame.nlargest(MAX_ROWS, longest) if longest else frame
    headings, units = zip(*(COLUMNS[name] for name in names), strict=True)
    cells = ([_cell(value, COLUMNS[name][1]) for value in frame[name]] for name in names)
    return Table(title=title, columns=headings, units=units, rows=tuple(zip(*cells, strict=True)))


def _cell(value: Any, unit: str) -> str | float:
    return float(value) / (1e3 if unit == "ms" else 1.0) if unit else f"`{str(value)[:70]}`"
