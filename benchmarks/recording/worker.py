"""Runs blocks of steps of one loop, when told to, over a socket: `python benchmarks/recording/worker.py LOOP SOCKET`.

A socket and not standard input, since some of the tools that start this process keep its standard streams.
"""

import argparse
import random
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2]))  # started as a script, by tools that know no modules

import msgspec
import torch

from benchmarks.recording.blocks import STEPS_TO_SETTLE, BlockRequest, BlockTimes, Side, SwitchRequest, SwitchTimes
from benchmarks.recording.loops import LOOPS, TrainingLoop

if TYPE_CHECKING:
    from benchmarks.recording.switch import Switch

Step = Callable[[], None]

STEPS_AFTER_TURN = 2
"""Not timed: Python forgets what it knew of torch's classes when their functions are replaced, and learns it anew. With
ten steps to a slice that would be a good part of what is measured, and no training pays it."""


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
                lines.write(msgspec.json.encode(run(step, loop, request)) + b"\n")
                lines.flush()


def run(step: Step, loop: TrainingLoop, request: BlockRequest | SwitchRequest) -> msgspec.Struct:
    """What was asked for."""
    if isinstance(request, SwitchRequest):
        return run_switched(step, loop, request)
    return run_block(step, request)


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
    """Rounds of slices of each side by turns, within one recording."""
    import efprof
    from benchmarks.recording.switch import Switch

    switch, order = Switch(loop.model), random.Random(0)
    times = SwitchTimes(
        cpu_ms={side: [] for side in request.sides}, wall_ms={side: [] for side in request.sides}, folder=""
    )
    with efprof.record(**request.options) as recording:
        if request.is_compiled:
            loop.model.compile()
        for _ in range(STEPS_TO_SETTLE):
            step()
        switch.learn()
        end = time.perf_counter() + request.seconds
        while time.perf_counter() < end:
            _add_round(step, switch, request, order, times)
        switch.turn("recorded")
    times.folder = str(recording.folder)
    return times


def _add_round(step: Step, switch: "Switch", request: SwitchRequest, order: random.Random, times: SwitchTimes) -> None:
    """How long its slices are, and which side's comes first, is drawn: turns of one length could give one side the same
    batches of an epoch, again and again.
    """
    cpu_s, wall_s, num_steps = dict.fromkeys(request.sides, 0.0), dict.fromkeys(request.sides, 0.0), 0
    for _ in range(request.slices):
        steps = max(1, request.steps + order.choice((-1, 0, 1)))
        num_steps += steps
        for side in order.sample(request.sides, len(request.sides)):
            cpu, wall = _time_slice(step, switch, side, steps)
            cpu_s[side] += cpu
            wall_s[side] += wall
    for side in request.sides:
        times.cpu_ms[side].append(cpu_s[side] / num_steps * 1000)
        times.wall_ms[side].append(wall_s[side] / num_steps * 1000)


def _time_slice(step: Step, switch: "Switch", side: Side, steps: int) -> tuple[float, float]:
    """Seconds by CPU time and by the wall."""
    switch.turn(side)
    for _ in range(STEPS_AFTER_TURN):
        step()
    began, cpu_began = _now(), time.process_time()
    for _ in range(steps):
        step()
    cpu_s = time.process_time() - cpu_began
    return cpu_s, _now() - began


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
