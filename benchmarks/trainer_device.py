"""A CUDA device's part of the trainer benchmark: time per step, share of it in kernels, and the card's ceilings."""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.trainer_steps import TimedStep, trainer_step
from energy_flow.config_parsing import load_config

MIN_KERNEL_SHARE = 0.8
"""Of a step at `large`, in which the device computes."""

CONFIGS = ("experiment", "large")

_WARM_UP_STEPS, _TIMED_STEPS, _PROFILED_STEPS, _CEILING_ROUNDS = 3, 9, 2, 20
_MATRIX_SIZE = 8192  # large enough that a product of bfloat16 matrices is bound by arithmetic alone
_COPIED_BYTES = 2**30  # beyond every cache

HEAD = (
    "| configuration | step | samples/s | in kernels | TFLOP/s | of ceiling | operand TB/s | of ceiling | peak |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)

METHOD = """
In kernels: the time in which any kernel runs, from a profile, over the step time measured without one. FLOP are those
of matrix products and attention (torch.utils.flop_counter). Operands are all bytes that operators are given and
return, views apart: more than what crosses the memory bus where a cache or a fused kernel saves it.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceStep:
    """What one step of a configuration took on the device."""

    seconds: float
    kernel_seconds: float
    flop: int
    operand_bytes: int
    peak_bytes: int
    num_samples: int


def device_lines(device: str) -> Iterator[str]:
    """The table of a CUDA device, and its requirement; on another device why there is none."""
    yield from ("## On a GPU", "")
    if device != "cuda":
        yield f"Not checked here: this ran on the {device}, and kernels and ceilings are a CUDA device's."
        return
    flop_per_second, bytes_per_second = measured_ceilings()
    yield (
        f"Measured ceilings: {flop_per_second / 1e12:.0f} TFLOP/s in a bfloat16 product of matrices of "
        f"{_MATRIX_SIZE} x {_MATRIX_SIZE}, {bytes_per_second / 1e12:.2f} TB/s read and written in a copy of "
        f"{_COPIED_BYTES // 2**20} MiB."
    )
    yield from (METHOD, *HEAD)
    requirement = ""
    for name in CONFIGS:
        try:
            step = measure_step(name)
        except torch.OutOfMemoryError:
            yield f"| {name} | out of memory | | | | | | | |"
            requirement = f"- Share of the step in kernels at `{name}` not held: out of memory."
        else:
            yield table_line(name, step, flop_per_second, bytes_per_second)
            requirement = kernel_requirement(name, step.kernel_seconds / step.seconds)
    yield from ("", requirement)  # of the last and largest configuration


def table_line(name: str, step: DeviceStep, flop_per_second: float, bytes_per_second: float) -> str:
    """A configuration's line of the table."""
    flop, operands = step.flop / step.seconds, step.operand_bytes / step.seconds
    cells = (
        name,
        f"{1000 * step.seconds:.1f} ms",
        f"{step.num_samples / step.seconds:.0f}",
        f"{step.kernel_seconds / step.seconds:.0%}",
        f"{flop / 1e12:.1f}",
        f"{flop / flop_per_second:.0%}",
        f"{operands / 1e12:.2f}",
        f"{operands / bytes_per_second:.0%}",
        f"{step.peak_bytes / 2**30:.1f} GiB",
    )
    return f"| {' | '.join(cells)} |"


def kernel_requirement(name: str, share: float) -> str:
    """Whether the device computes for as much of the step as it must."""
    verdict = "held" if share >= MIN_KERNEL_SHARE else "not held"
    return f"- Share of the step in kernels at `{name}` {verdict}: {share:.0%}, at least {MIN_KERNEL_SHARE:.0%}."


def measure_step(name: str) -> DeviceStep:
    """Time, profile and count one configuration's step on the current CUDA device."""
    step = trainer_step(load_config(name), torch.device("cuda"))
    torch.cuda.reset_peak_memory_stats()
    seconds = statistics.median(_timed(step.run, _WARM_UP_STEPS, _TIMED_STEPS))
    peak_bytes = torch.cuda.max_memory_allocated()
    kernel_seconds = _kernel_seconds(step)
    with FlopCounterMode(display=False) as flop:
        step.run()
    with OperandBytes() as operands:
        step.run()
    return DeviceStep(
        seconds=seconds,
        kernel_seconds=kernel_seconds,
        flop=flop.get_total_flops(),
        operand_bytes=operands.total,
        peak_bytes=peak_bytes,
        num_samples=step.num_samples,
    )


def measured_ceilings() -> tuple[float, float]:
    """FLOP/s of a large bfloat16 product and bytes/s of a large copy, the best of some rounds each."""
    left, right = torch.randn(2, _MATRIX_SIZE, _MATRIX_SIZE, device="cuda", dtype=torch.bfloat16).unbind()
    source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    product = min(_timed(lambda: left @ right, _WARM_UP_STEPS, _CEILING_ROUNDS))
    copy = min(_timed(lambda: target.copy_(source), _WARM_UP_STEPS, _CEILING_ROUNDS))
    return 2 * _MATRIX_SIZE**3 / product, 2 * _COPIED_BYTES / copy


class OperandBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of what operators are given and return; a view is neither read nor written."""

    def __init__(self) -> None:
        """Start at none."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator and count."""
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = tree_leaves((args, kwargs, out))
            self.total += sum(tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor))
        return out


def covered(intervals: Iterable[tuple[int, int]]) -> int:
    """The length of the union of intervals (start, end)."""
    total, reached = 0, None
    for start, end in sorted(intervals):
        if reached is None or start > reached:
            reached = start
        total += max(0, end - reached)
        reached = max(reached, end)
    return total


def _timed(run: Callable[[], object], num_warm_up: int, num_rounds: int) -> list[float]:
    seconds = []
    for _ in range(num_warm_up + num_rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds[num_warm_up:]


def _kernel_seconds(step: TimedStep) -> float:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(_PROFILED_STEPS):
            step.run()
        torch.cuda.synchronize()
    events = (event for event in profile.events() if event.device_type == DeviceType.CUDA)
    kernels = (event for event in events if not event.name.startswith(("Memcpy", "Memset")))
    covered_us = covered((event.time_range.start, event.time_range.end) for event in kernels)
    return float(covered_us) / 1e6 / _PROFILED_STEPS
