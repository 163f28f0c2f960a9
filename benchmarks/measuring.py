"""Runs a loop with a tool and without it by turns, and pairs each block with the bare ones beside it.

On and off in one process wherever the tool can be taken out of it again: two processes of one program differ by
up to 2 % for as long as they live, by where their memory happens to lie (measured), and no number of rounds would
take that out. What must be there from a process's start is measured between two processes, as is the row that
shows by how much a pair differs that should not differ at all.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from benchmarks.blocks import STEPS_TO_SETTLE, BlockRequest, BlockTimes, SwitchTimes
from benchmarks.processes import Worker, started
from benchmarks.variants import PLAIN, RECORDED, Variant, bare_request
from efprof.artifacts.events import WindowClosed, read_events
from efprof.artifacts.steps import read_steps

FIRST_STEPS = 30
"""Of a process, in which torch chooses its kernels and Python specialises its code."""

STEPS_ALONE = 20


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A block with the tool and the bare one of its round."""

    tool: BlockTimes
    bare: BlockTimes
    own_us: float | None = None
    """What the recorder says that it took of a step."""
    window_s: float | None = None
    """What opening and writing a window took, between the steps."""


def run_bare(loop: str, device: str) -> BlockTimes:
    """A process of its own: how long a step takes, and how much memory it needs."""
    return _run_once(PLAIN, loop, device)


def run_recorded(loop: str, device: str) -> BlockTimes:
    """The same under `efprof record`."""
    return _run_once(RECORDED, loop, device)


def run_at_hooks(variant: Variant, loop: str, device: str, bare_ms: float) -> list[float]:
    """Microseconds per step that a variant's recording takes at its hooks, in each round."""
    with _workers(variant, loop, device) as (worker, _):
        times = worker.time_hooks(variant.at_hooks_request(bare_ms))
    without = median(times.bare_us)
    return [recorded - without for recorded in times.recorded_us]


def measure(variant: Variant, loop: str, device: str, bare_ms: float, *, rounds: int) -> list[Pair]:
    """All the rounds of a variant; raises RuntimeError where the tool recorded nothing."""
    pairs: list[Pair] = []
    order = random.Random(0)
    if variant.switched_s:
        for _ in range(variant.num_processes):
            with _workers(variant, loop, device) as (worker, _):
                pairs += _switched(worker.switch(variant.switch_request(bare_ms)))
        return pairs
    num_processes = min(variant.num_processes, max(1, rounds // 2))
    for number in range(num_processes):
        num_rounds = len(range(number, rounds, num_processes))
        with _workers(variant, loop, device) as (tool, bare):
            pairs += [_round(variant, tool, bare, bare_ms, order) for _ in range(num_rounds)]
    return pairs


def _run_once(launcher: tuple[str, ...], loop: str, device: str) -> BlockTimes:
    with started(launcher, loop, device) as worker:
        return worker.run(BlockRequest(warm_up=FIRST_STEPS, steps=STEPS_ALONE))


@contextmanager
def _workers(variant: Variant, loop: str, device: str) -> Iterator[tuple[Worker, Worker]]:
    """The process for the blocks with the tool and the one for those without; often they are the same."""
    with started(variant.launcher if variant.is_whole_process else PLAIN, loop, device, variant.arguments) as tool:
        tool.run(BlockRequest(warm_up=FIRST_STEPS, steps=1))
        if not variant.is_whole_process:
            yield tool, tool
            return
        with started(PLAIN, loop, device) as bare:
            bare.run(BlockRequest(warm_up=FIRST_STEPS, steps=1))
            yield tool, bare


def _round(variant: Variant, tool: Worker, bare: Worker, bare_ms: float, order: random.Random) -> Pair:
    """A block each, in random order: what drifts meanwhile favours neither."""
    if order.random() < 0.5:
        first = tool.run(variant.request(bare_ms))
        return _pair(variant, first, bare.run(bare_request(bare_ms)))
    first = bare.run(bare_request(bare_ms))
    return _pair(variant, tool.run(variant.request(bare_ms)), first)


def _switched(times: SwitchTimes) -> list[Pair]:
    own_us = fmean(step.recorder_us for step in read_steps(Path(times.folder) / "rank0")[0][STEPS_TO_SETTLE:])

    def block(wall_ms: float, cpu_ms: float) -> BlockTimes:
        return BlockTimes(times_ms=[wall_ms], cpu_ms=cpu_ms, around_s=0.0, peak_bytes=0)

    recorded = map(block, times.recorded_ms, times.recorded_cpu_ms)
    bare = map(block, times.bare_ms, times.bare_cpu_ms)
    return [Pair(tool=one, bare=other, own_us=own_us) for one, other in zip(recorded, bare, strict=True)]


def _pair(variant: Variant, tool: BlockTimes, bare: BlockTimes) -> Pair:
    if tool.folder is None:
        return Pair(tool=tool, bare=bare, window_s=tool.around_s if variant.has_window else None)
    rank = Path(tool.folder) / "rank0"
    if variant.expects and not (rank / variant.expects).exists():
        raise RuntimeError(f"its recording left no {variant.expects}")
    warm_up = variant.request(1.0).warm_up
    own_us = fmean(step.recorder_us for step in read_steps(rank)[0][warm_up:])
    closed = [event.seconds for event in read_events(rank)[0] if isinstance(event, WindowClosed)]
    return Pair(tool=tool, bare=bare, own_us=own_us, window_s=sum(closed) if variant.has_window else None)
