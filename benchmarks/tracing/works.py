"""What is done with a trace: a bare decoding, ours, other people's tools; each in a fresh process."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.recording.processes import ROOT
from efprof.artifacts.files import no_garbage_collection
from efprof.artifacts.trace.blocks import TraceText
from efprof.artifacts.trace.events import Decoder
from efprof.artifacts.trace.read import read_here

LOOK_S: Final = 0.03
"""Between two looks at the memory of several processes: one holds them up for a millisecond or more."""
LONGEST_S: Final = 3600

HTA: Final = """
import sys, warnings
warnings.simplefilter("ignore")
from benchmarks.tracing.child import measured
from hta.trace_analysis import TraceAnalysis
def load():
    trace = TraceAnalysis(trace_files={0: sys.argv[1]}, include_last_profiler_step=True).t.get_trace(0)
    return len(trace), int(trace.memory_usage(deep=False).sum())
measured(load)
"""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Of one process and its children; `others` are the processors that everything else on the machine used."""

    wall_s: float
    cpu_s: float
    others: float
    peak_bytes: int
    num_events: int = 0
    num_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Whole:
    """Of a program from its start to its end, its children included."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def bare(file: str) -> tuple[int, int]:
    """What a child does: unpack and decode, and keep nothing."""
    with no_garbage_collection():
        return sum(len(events) for events, _ in TraceText(Path(file)).decoded(Decoder().events)), 0


def alone(file: str) -> tuple[int, int]:
    """What a child does."""
    return _columns(file, 1)


def by_two(file: str) -> tuple[int, int]:
    """What a child does."""
    return _columns(file, 2)


def _columns(file: str, num_processes: int) -> tuple[int, int]:
    text, columns = read_here(Path(file), num_processes)
    dense, sparse = columns.ordered(text.header.base_ns, num_processes)
    arrays = [*dense.values(), *(array for pair in sparse.values() for array in pair)]
    return len(dense["phase"]), sum(array.nbytes for array in arrays)


def ours(work: Callable[[str], tuple[int, int]], file: Path) -> list[str]:
    """The command of a child."""
    code = (
        f"import sys; from benchmarks.tracing.child import measured; from benchmarks.tracing.works import "
        f"{work.__name__}; measured(lambda: {work.__name__}(sys.argv[1]))"
    )
    return [sys.executable, "-c", code, str(file)]


def hta(python: Path, file: Path) -> list[str]:
    """The command of a child that has HolisticTraceAnalysis."""
    return [str(python), "-c", HTA, str(file)]


def report(file: Path, page: Path) -> list[str]:
    """The whole of it: columns, facts, audits and the page."""
    return [sys.executable, "-m", "efprof", "report", str(file), "--out", str(page)]


def report_on_processors(num_processors: int, folder: Path, page: Path) -> list[str]:
    """The same of the ranks in a folder, where the process may use no more processors."""
    some = ",".join(map(str, sorted(os.sched_getaffinity(0))[:num_processors]))
    return ["taskset", "--cpu-list", some, *report(folder, page)]


def tracelens(python: Path, file: Path, table: Path) -> list[str]:
    """AMD's report of the same file."""
    module = "TraceLens.Reporting.generate_perf_report_pytorch"
    return [str(python), "-m", module, "--profile_json_path", str(file), "--output_xlsx_path", str(table)]


def cost_of(command: Sequence[str]) -> Cost:
    """Run a child that measures itself; raises RuntimeError where it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Cost)


def whole_of(command: Sequence[str]) -> Whole:
    """Run a program, and look at the memory of its processes meanwhile; raises RuntimeError where it fails."""
    peak_bytes = 0
    with tempfile.TemporaryFile() as said:
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said)
        while True:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            peak_bytes = max(peak_bytes, _memory_bytes(_family(process.pid)))
            time.sleep(LOOK_S)
        wall_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise RuntimeError(f"{command[0]} ended with {process.returncode}: {said.read()[-2000:].decode()}")
    return Whole(wall_s=wall_s, cpu_s=used.ru_utime + used.ru_stime, peak_bytes=peak_bytes)


def _family(pid: int) -> list[int]:
    """The process and all below it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it ended meanwhile
        return []
    return [pid, *(one for child in children for one in _family(int(child)))]


def _memory_bytes(pids: Sequence[int]) -> int:
    """What processes have together: each page of data once, and of files as much as the one that has most of them.

    A page of a library, which strangers use as well, would else count as the less the more of them there are.
    """
    data, files = 0, 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        except OSError:  # it ended meanwhile
            continue
        kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        if kib:
            data += kib["Pss_Anon"] + kib["Pss_Shmem"]
            files = max(files, kib["Rss"] - kib["Anonymous"])
    return (data + files) << 10
