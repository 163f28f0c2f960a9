"""What is measured: the recorder's tiers, and beside them the tools that people use for the same."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.recording.blocks import STEPS_TO_SETTLE, BlockRequest, Side, SwitchRequest, Under

BIN = Path(sys.executable).parent
WORKER = "benchmarks/recording/worker.py"

PLAIN = (sys.executable, WORKER)

RECORDED = (sys.executable, "-m", "efprof", "record", "--windows", "none", "--", *PLAIN)
"""Always-on recording as people start it, for the memory that it adds to a process."""

STEPS_BEFORE_WINDOW = 6
WINDOW_STEPS = 5

TIMED_MS = 400.0
"""Of a block: long against a switch between blocks, short against the time for which a shared machine stays slow."""

SLICE_MS = 110.0
"""Of timed steps between two switches: short against the time for which the machine stays slow."""

ROUND_MS = 4000.0
"""Of slices by turns: long against the distance of two bursts, and the second after which light steps are written."""

MIN_STEPS, MAX_STEPS = 10, 100


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One row of the table.

    `under` and `options` are what a block of it runs under. A tool that must be there from a process's start is all
    in `launcher` and `arguments` instead (`is_whole_process`).
    """

    name: str
    rounds: int
    under: Under = "nothing"
    options: Mapping[str, Any] = field(default_factory=dict)
    launcher: tuple[str, ...] = PLAIN
    arguments: tuple[str, ...] = ()
    is_whole_process: bool = False
    switched_s: float = 0.0
    """For how long it is taken out and put back within one recording; 0: it is started and ended for each block."""
    num_processes: int = 1
    """That the rounds are spread over: two where the luck of one could be taken for a small cost."""
    has_window: bool = False
    expects: str | None = None
    """A file that its recording must leave."""

    def request(self, bare_ms: float) -> BlockRequest:
        """A block with the tool on."""
        if self.is_whole_process:
            return bare_request(bare_ms)
        warm_up, steps = STEPS_TO_SETTLE, _steps_of(bare_ms)
        if self.has_window:
            warm_up, steps = STEPS_BEFORE_WINDOW, WINDOW_STEPS
        return BlockRequest(under=self.under, options=dict(self.options), warm_up=warm_up, steps=steps)

    def switch_request(self, bare_ms: float) -> SwitchRequest:
        """Recorded blocks and bare ones by turns, in one of its processes."""
        return switch_request(bare_ms, self.switched_s, ("bare", "recorded"), self.options)


def switch_request(
    bare_ms: float,
    seconds: float,
    sides: tuple[Side, ...],
    options: Mapping[str, Any],
    *,
    round_ms: float = ROUND_MS,
    is_compiled: bool = False,
) -> SwitchRequest:
    """Slices of each side by turns."""
    steps = max(1, round(SLICE_MS / bare_ms))
    return SwitchRequest(
        seconds=seconds,
        steps=steps,
        slices=max(1, round(round_ms / (len(sides) * steps * bare_ms))),
        sides=sides,
        is_compiled=is_compiled,
        options=dict(options),
    )


def bare_request(bare_ms: float) -> BlockRequest:
    """A block with no tool on; its first steps find the caches cold."""
    return BlockRequest(warm_up=3, steps=_steps_of(bare_ms))


def _steps_of(bare_ms: float) -> int:
    return min(MAX_STEPS, max(MIN_STEPS, round(TIMED_MS / bare_ms)))


ALWAYS_ON = Variant(
    name="always on",
    rounds=30,
    under="efprof",
    options={"windows": "none", "holders": False},  # of windows and counts a whole run tells
    num_processes=2,
    switched_s=60.0,
)
IN_WINDOW = Variant(
    name="in a window",
    rounds=9,
    under="efprof",
    options={
        # It opens one step before the first that is timed, and closes after the last.
        "trace_steps": f"{STEPS_BEFORE_WINDOW - 1}:{STEPS_BEFORE_WINDOW + WINDOW_STEPS}",
        "memory_steps": "none",
        "triggers": "none",
    },
    has_window=True,
    expects="trace-1.json.gz",
)
HOST_MEMORY = Variant(
    name="--host-memory",
    rounds=9,
    under="efprof",
    options={"windows": "none", "host_memory": True},
    expects="host.memray",
)
PROFILER = Variant(name="torch.profiler alone", rounds=9, under="torch.profiler", has_window=True)
MEMRAY = Variant(
    name="memray alone",
    rounds=9,
    launcher=(sys.executable, "-m", "memray", "run", "--quiet", "--output", "{home}/bare.memray", WORKER),
    is_whole_process=True,
)
TRACEML = Variant(
    name="TraceML 0.5",
    rounds=12,
    launcher=(
        *(str(BIN / "traceml"), "run", WORKER, "--mode", "summary", "--logs-dir", "{home}/logs"),
        *("--aggregator-port", "{port}", "--master-port", "{other_port}", "--args"),
    ),
    arguments=("--traceml",),
    is_whole_process=True,
    num_processes=2,
)
BARE = Variant(name="bare, another process", rounds=12, is_whole_process=True, num_processes=2)

VARIANTS = (ALWAYS_ON, IN_WINDOW, HOST_MEMORY, PROFILER, MEMRAY, TRACEML, BARE)
