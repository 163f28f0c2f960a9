"""What torch does on CUDA otherwise: optimizers that work on lists, and cuBLAS's workspaces."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from efprof.artifacts.allocations import AllocationWindow
from efprof.facts.allocator.settings import MIB
from efprof.facts.gpu_estimate.gpu_estimate import GpuEstimate
from efprof.facts.gpu_estimate.on_cuda import CUBLAS_BYTES, num_cublas_workspaces
from efprof.facts.peak.live_memory import replay
from efprof.facts.run.run import open_run
from tests.facts.allocations import allocation
from tests.recorder.recording import record_here

NUM_WEIGHTS, WEIGHT_BYTES = 6, 4 * MIB


def sgd(weights: list[torch.nn.Parameter], **how: bool) -> torch.optim.Optimizer:
    """With a decay, for which it makes the gradients once more."""
    return torch.optim.SGD(weights, lr=0.1, weight_decay=0.1, **how)


def peak_with(folder: Path, make: Callable[..., torch.optim.Optimizer], **how: bool) -> int:
    """Most in use at once, of a training in which the optimizer alone needs memory."""

    def train() -> None:
        weights = [torch.nn.Parameter(torch.ones(WEIGHT_BYTES // 4)) for _ in range(NUM_WEIGHTS)]
        optimizer = make(weights, **how)
        for _ in range(5):
            optimizer.zero_grad()
            torch.autograd.backward([weight.sum() for weight in weights])
            optimizer.step()

    record_here(folder, train, windows=((2, 4),))
    return open_run(folder).get(GpuEstimate).peak_allocated_bytes


@pytest.mark.filterwarnings("ignore:.*kineto.*:UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        torch.optim.AdamW,
        *(pytest.param(one, marks=pytest.mark.long) for one in (sgd, torch.optim.RMSprop, torch.optim.Adadelta)),
    ],
)
def test_an_optimizer_that_looped_on_the_cpu_needs_what_its_lists_take(
    tmp_path: Path, make: Callable[..., torch.optim.Optimizer]
) -> None:
    in_lists = peak_with(tmp_path / "lists", make, foreach=True)
    in_loop = peak_with(tmp_path / "loop", make, foreach=False)
    assert in_loop == pytest.approx(in_lists, abs=MIB / 2)


def test_each_of_two_threads_that_multiply_matrices_has_a_workspace() -> None:
    def window(*events: bool) -> int:
        made = [allocation(time, time, MIB, is_backward=is_backward) for time, is_backward in enumerate(events)]
        return num_cublas_workspaces([replay(AllocationWindow(name="", events=tuple(made)), [])])

    assert [window(), window(False), window(False, True, True)] == [0, 1, 2]
    assert CUBLAS_BYTES == 8_519_680
