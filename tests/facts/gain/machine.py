"""A made host and device: they run a program and write the trace of it, the clock of which is the truth to replay."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from efprof.artifacts.trace.blocks import Header
from efprof.artifacts.trace.columns import Columns, Trace
from efprof.artifacts.trace.events import Decoder
from efprof.facts.time.trace_windows import TraceWindow, foreign_window
from tests.facts.time.traces import MAIN, event
from tests.support.builders import named

CALL_US, LATENCY_US = 3, 5
"""What a call of the runtime takes, and how long after it a kernel begins where nothing holds it up."""
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


class Do(NamedTuple):
    """What a program does: `host`, `loader`, `launch`, `sync`, `sync_stream`, `wait`, `read`; how long, and where.

    `wait` makes the stream wait for all that was launched on the `other` one; `read` copies to pageable memory.
    """

    what: str
    us: int = 0
    stream: int = 7
    other: int = 8
    lane: tuple[int, int] = MAIN


class Machine:
    """Runs a program; `without` names what takes no time on the host, and waits for nothing."""

    def __init__(
        self, program: Sequence[Do], *, without: str = "", tail_us: int = 0, knows_streams: bool = True
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self.now_us = 0
        self._without = without
        self._tail_us = tail_us
        self._knows_streams = knows_streams
        self._free_us: dict[int, int] = {}
        self._not_before_us: dict[int, int] = {}
        for action in program:
            getattr(self, f"_{action.what}")(action)
        self.events.insert(0, event("ProfilerStep#1", 0, self.now_us, "user_annotation"))

    @property
    def length_ms(self) -> float:
        """Until the host and the device have ended."""
        return max(self.now_us, self.device_us) / 1000

    @property
    def device_us(self) -> int:
        return max(self._free_us.values(), default=0)

    @property
    def window(self) -> TraceWindow:
        return window_of(*self.events)

    def _host(self, action: Do) -> None:
        self.now_us += action.us

    def _loader(self, action: Do) -> None:
        if self._without != "loader":
            self.events.append(event(LOADER, self.now_us, action.us, "user_annotation"))
            self.now_us += action.us

    def _launch(self, action: Do) -> None:
        self._call("cudaLaunchKernel", action, CALL_US)
        self._run(action, "kernel", "gemm", self.now_us + LATENCY_US)

    def _sync(self, action: Do) -> None:
        if self._without != "sync":
            end_us = max(self.now_us + CALL_US, self.device_us + self._tail_us)
            self._call("cudaDeviceSynchronize", action, end_us - self.now_us)

    def _sync_stream(self, action: Do) -> None:
        end_us = max(self.now_us + CALL_US, self._free_us.get(action.stream, 0) + self._tail_us)
        self._call("cudaStreamSynchronize", action, end_us - self.now_us)
        self._tell("Stream Sync", action, len(self.events) - 1)

    def _wait(self, action: Do) -> None:
        self._not_before_us[action.stream] = max(
            self._free_us.get(action.other, 0), self._not_before_us.get(action.stream, 0)
        )
        self._call("cudaStreamWaitEvent", action, CALL_US)
        self._tell("Stream Wait Event", action, len(self.events) - 1, wait_on_stream=action.other)

    def _tell(self, name: str, action: Do, number: int, **waited: int) -> None:
        """What the profiler writes beside a call that waits, where it is asked to."""
        if self._knows_streams:
            told = event(name, self.now_us, 0, "cuda_sync", (0, action.stream))
            self.events.append({**told, "args": {"correlation": number, **waited}})

    def _read(self, action: Do) -> None:
        start_us = self.now_us
        self.events.append(
            event("cudaMemcpyAsync", start_us, 0, "cuda_runtime", action.lane, correlation=len(self.events))
        )
        call = self.events[-1]
        end_us = self._run(action, "gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", start_us + LATENCY_US)
        self.now_us = end_us + self._tail_us
        call["dur"] = self.now_us - start_us

    def _call(self, name: str, action: Do, length_us: int) -> None:
        number = len(self.events)
        self.events.append(event(name, self.now_us, length_us, "cuda_runtime", action.lane, correlation=number))
        self.now_us += length_us

    def _run(self, action: Do, category: str, name: str, ready_us: int) -> int:
        stream, number = action.stream, len(self.events) - 1
        start_us = max(ready_us, self._free_us.get(stream, 0), self._not_before_us.pop(stream, 0))
        self.events.append(event(name, start_us, action.us, category, (0, stream), correlation=number))
        self._free_us[stream] = start_us + action.us
        return self._free_us[stream]


def window_of(*events: dict[str, Any]) -> TraceWindow:
    """The window of a trace of these events."""
    columns = Columns()
    block = Decoder().block(msgspec.json.encode(events))
    assert block is not None
    columns.add(block)
    dense, sparse = columns.ordered(0)
    names = {"texts": list(columns.texts), "lanes": list(columns.lanes)}
    trace = Trace(path=Path("made"), header=Header(), num_unreadable=0, sparse=sparse, **names, **dense)
    return foreign_window(trace)


def events_named(window: TraceWindow, *names: str) -> list[int]:
    return [place for name in names for place in named(window.trace, name)]
