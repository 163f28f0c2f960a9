"""Runs blocks of steps of one loop, when told to, over a Unix socket: `python benchmarks/worker.py LOOP SOCKET`.

A socket and not standard input, since some of the tools that start this process keep its standard streams.
"""

import argparse
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # started as a script, by tools that know no modules

import msgspec
import torch

from benchmarks.blocks import STEPS_TO_SETTLE, BlockRequest, BlockTimes, SwitchRequest, SwitchTimes
from benchmarks.loops import LOOPS, TrainingLoop

Step = Callable[[], None]


def main() -> None:
    """Answer each request for a block with its times, until the other side hangs up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("loop", choices=LOOPS)
    parser.add_argument("socket")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--traceml", action="store_true", help="Write the step as TraceML wants it written.")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loop = LOOPS[chosen.loop](torch.device(chosen.device))
    step = traceml_step(loop) if chosen.traceml else plain_step(loop)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(chosen.socket)
        with connection.makefile("rwb") as lines:
            for line in lines:
                request = msgspec.json.decode(line, type=BlockRequest | SwitchRequest)
                if isinstance(request, SwitchRequest):
                    answer = msgspec.json.encode(run_switched(step, loop, request))
                else:
                    answer = msgspec.json.encode(run_block(step, request))
                lines.write(answer + b"\n")
                lines.flush()


def plain_step(loop: TrainingLoop) -> Step:
    """A step as most loops have it."""

    def step() -> None:
        loop.train(next(loop.batches))

    return step


def traceml_step(loop: TrainingLoop) -> Step:
    """A step as TraceML's own README writes it for a plain loop: the fetch of the batch is not in `trace_step`."""
    import traceml_ai  # type: ignore[import-untyped]

    traceml_ai.init(mode="auto", on_missing_aggregator="raise")

    def step() -> None:
        batch = next(loop.batches)
        with traceml_ai.trace_step(loop.model):
            loop.train(batch)

    return step


def run_block(step: Step, request: BlockRequest) -> BlockTimes:
    """Warm up, then time each step; what opening and closing the window takes is told apart.

    On a CUDA device the mean stands for all: the host runs ahead of the device, so that only the sum is true.
    """
    opened = time.perf_counter()
    with _under(request) as folder:
        started = time.perf_counter()
        for _ in range(request.warm_up):
            step()
        began, cpu_began = _now(), time.process_time()
        times = [_timed(step) for _ in range(request.steps)]
        cpu_ms = (time.process_time() - cpu_began) / request.steps * 1000
        ended = _now()
    around_s = time.perf_counter() - ended + started - opened
    mean_ms = (ended - began) / request.steps * 1000
    is_on_device = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return BlockTimes(
        times_ms=[mean_ms] if is_on_device else times,
        cpu_ms=cpu_ms,
        around_s=around_s,
        peak_bytes=peak_host_bytes(),
        folder=folder,
    )


def run_switched(step: Step, loop: TrainingLoop, request: SwitchRequest) -> SwitchTimes:
    """Recorded blocks and bare ones by turns; each recorded one ends with the writing of what it recorded."""
    import efprof
    from benchmarks.switch import Switch
    from efprof.recorder import current

    switch, recorded, bare = Switch(loop.model), [], []
    with efprof.record(**request.options) as recording:
        for _ in range(STEPS_TO_SETTLE):
            step()
        assert current.session is not None
        write = current.session.loop.leave_sprint
        switch.learn()
        switch.off()
        bare.append(_block(step, request.steps, 3))
        end = time.perf_counter() + request.seconds
        while time.perf_counter() < end:
            switch.on()
            write()
            recorded.append(_block(step, request.steps, request.settle, write))
            switch.off()
            bare.append(_block(step, request.steps, 3))
        switch.on()
    beside = [[(before + after) / 2 for before, after in zip(*pair, strict=True)] for pair in pairwise(bare)]
    return SwitchTimes(
        recorded_cpu_ms=[cpu_ms for cpu_ms, _ in recorded],
        recorded_ms=[wall_ms for _, wall_ms in recorded],
        bare_cpu_ms=[cpu_ms for cpu_ms, _ in beside],
        bare_ms=[wall_ms for _, wall_ms in beside],
        folder=str(recording.folder),
    )


def _block(step: Step, steps: int, settle: int, then: Step | None = None) -> tuple[float, float]:
    """Milliseconds per step, by CPU time and by the wall."""
    for _ in range(settle):
        step()
    began, cpu_began = _now(), time.process_time()
    for _ in range(steps):
        step()
    if then is not None:
        then()
    cpu_s, wall_s = time.process_time() - cpu_began, _now() - began
    return cpu_s / steps * 1000, wall_s / steps * 1000


def peak_host_bytes() -> int:
    """The most that was resident of this process so far."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (kilobytes,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(kilobytes) * 1024


@contextmanager
def _under(request: BlockRequest) -> Iterator[str | None]:
    """What the steps are run under; gives the run folder where there is one."""
    if request.under == "efprof":
        import efprof

        with efprof.record(**request.options) as recording:
            yield str(recording.folder)
    elif request.under == "torch.profiler":
        with torch.profiler.profile(record_shapes=True, with_stack=True, profile_memory=True, with_modules=True):
            yield None
    else:
        yield None


def _timed(step: Step) -> float:
    start = time.perf_counter()
    step()
    return (time.perf_counter() - start) * 1000


def _now() -> float:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
