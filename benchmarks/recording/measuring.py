"""Runs a loop with a tool and without it by turns, and pairs each block with the bare ones beside it.

On and off in one process wherever the tool can be taken out of it again: two processes of one program differ by
up to 2 % for as long as they live, by where their memory happens to lie (measured), and no number of rounds would
take that out. What must be there from a process's start is measured between two processes, as is the row that
shows by how much a pair differs that should not differ at all.
"""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.recording.blocks import STEPS_TO_SETTLE, BlockRequest, BlockTimes, Side, SwitchTimes
from benchmarks.recording.processes import Worker, started
from benchmarks.recording.variants import PLAIN, RECORDED, Variant, bare_request
from efprof.artifacts.events import RecordingCost, WindowClosed, read_events
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


def run_whole(loop: str, device: str, bare_ms: float, seconds: float) -> float:
    """What windows and counts took beyond the stated allowance, as a share of a whole run with default options.

    Their own clock's word: two processes of one program differ by more than that.
    """
    request = BlockRequest(under="efprof", warm_up=0, steps=round(seconds * 1000 / bare_ms))
    with started(PLAIN, loop, device) as worker:
        began = time.perf_counter()
        times = worker.run(request)
        took_s = time.perf_counter() - began
        costs = [event for event in read_events(_rank(times.folder))[0] if isinstance(event, RecordingCost)]
    spent_s = sum(spent for what, spent in costs[-1].seconds.items() if what != "steps")
    return max(0.0, spent_s - costs[-1].allowance_s) / took_s


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
    own_us = fmean(step.recorder_us for step in read_steps(_rank(times.folder))[0][STEPS_TO_SETTLE:])

    def blocks(side: Side) -> list[BlockTimes]:
        both = zip(times.wall_ms[side], times.cpu_ms[side], strict=True)
        return [BlockTimes(times_ms=[wall_ms], cpu_ms=cpu_ms, around_s=0.0, peak_bytes=0) for wall_ms, cpu_ms in both]

    pairs = zip(blocks("recorded"), blocks("bare"), strict=True)
    return [Pair(tool=recorded, bare=bare, own_us=own_us) for recorded, bare in pairs]


def _pair(variant: Variant, tool: BlockTimes, bare: BlockTimes) -> Pair:
    if tool.folder is None:
        return Pair(tool=tool, bare=bare, window_s=tool.around_s if variant.has_window else None)
    rank = _rank(tool.folder)
    if variant.expects and not (rank / variant.expects).exists():
        raise RuntimeError(f"its recording left no {variant.expects}")
    warm_up = variant.request(1.0).warm_up
    own_us = fmean(step.recorder_us for step in read_steps(rank)[0][warm_up:])
    closed = [event.seconds for event in read_events(rank)[0] if isinstance(event, WindowClosed)]
    return Pair(tool=tool, bare=bare, own_us=own_us, window_s=sum(closed) if variant.has_window else None)


def _rank(folder: str | None) -> Path:
    assert folder is not None
    return Path(folder) / "rank0"
