"""Autograd's own threads on a device, and captures of CUDA graphs: what the simulated device takes for granted."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped, OtherThreadTrained
from efprof.artifacts.steps import StepRecord
from efprof.recorder.session.options import DEFAULT_MEMORY_STEPS
from tests.gpu.cuda_runs import ROOT, needs_cuda
from tests.recorder.recording import EVERY_STEP_IN_FULL, HARDLY_ANY_IN_FULL, Recorded, record_here, stages
from tests.recorder.training import BATCH, make_model
from tests.simulated_cuda.test_engine_threads import MICRO_BATCHES, Train, step_all_in_the_last_hook
from tests.simulated_cuda.test_engine_threads import NUM_STEPS as NUM_UPDATES
from tests.support.waiting import MAX_WAIT_S

pytestmark = needs_cuda

NUM_STEPS = 30
in_full_and_light = pytest.mark.parametrize("overhead", [EVERY_STEP_IN_FULL, HARDLY_ANY_IN_FULL], ids=["full", "light"])


def losses(step: StepRecord) -> list[float | str]:
    """The one that there is; none where a step's loss was not seen."""
    return [] if step.loss is None else [step.loss]


def recorded_on(device: str, folder: Path, train: Train, overhead: float) -> Recorded:
    torch.manual_seed(0)
    found = record_here(folder, lambda: train(device), overhead=overhead, memory_steps=DEFAULT_MEMORY_STEPS)
    assert found.events(CollectorStopped) == []
    assert found.events(OtherThreadTrained) == []
    return found


def test_hooks_run_within_a_graph_task_on_a_thread_that_python_does_not_list() -> None:
    seen: list[tuple[int, int, bool]] = []

    def look(*_: object) -> None:
        thread = threading.get_ident()
        seen.append((thread, torch._C._current_graph_task_id(), thread in {one.ident for one in threading.enumerate()}))

    weight = torch.ones(3, device="cuda", requires_grad=True)
    weight.register_hook(look)
    weight.register_post_accumulate_grad_hook(look)
    weight.sum().backward()
    assert [(thread != threading.get_ident(), task != -1) for thread, task, _ in seen] == [(True, True)] * 2
    assert torch._C._current_graph_task_id() == -1
    # https://github.com/pytorch/pytorch/pull/192004 would list them; the recorder does not depend on it.
    print("autograd's thread is listed:", [is_listed for _, _, is_listed in seen])


@in_full_and_light
@pytest.mark.parametrize("train", MICRO_BATCHES)
def test_what_runs_on_the_devices_thread_is_recorded_as_on_a_cpu(train: Train, overhead: float, tmp_path: Path) -> None:
    here = recorded_on("cpu", tmp_path / "cpu", train, overhead).steps
    there = recorded_on("cuda", tmp_path / "cuda", train, overhead).steps
    assert [(one.step, one.micro_batches) for one in there] == [(one.step, one.micro_batches) for one in here]
    assert [losses(one) for one in there] == [pytest.approx(losses(one), rel=1e-3) for one in here]
    full = [pair for pair in zip(here, there, strict=True) if pair[0].is_full and pair[1].is_full]
    assert [(stages(other), other.samples) for _, other in full] == [(stages(one), one.samples) for one, _ in full]
    assert [one.micro_batches for one in there] == MICRO_BATCHES[train]


def test_a_thread_that_trains_in_the_place_of_ours_has_the_devices_thread_work_for_it(tmp_path: Path) -> None:
    def train_elsewhere(device: str) -> None:
        thread = threading.Thread(target=lambda: step_all_in_the_last_hook(device))
        thread.start()
        thread.join()

    assert len(recorded_on("cuda", tmp_path, train_elsewhere, EVERY_STEP_IN_FULL).steps) == NUM_UPDATES


def train_around(between: Callable[[Callable[[], None]], object]) -> Callable[[str], None]:
    """Steps on a side stream, as captures need it, and something between them that is given one."""

    def train(device: str) -> None:
        model = make_model().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        inputs = torch.ones(BATCH, 3, device=device)

        def step() -> None:
            optimizer.zero_grad(set_to_none=False)
            model(inputs).square().mean().backward()
            torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()

        with torch.cuda.stream(torch.cuda.Stream()):
            for number in range(NUM_STEPS):
                step()
                if number in (NUM_STEPS // 3, NUM_STEPS - 5):
                    torch.cuda.synchronize()
                    between(step)

    return train


def fail_to_begin(_: object) -> None:
    with torch.cuda.stream(torch.cuda.default_stream()), pytest.raises(RuntimeError):
        torch.cuda.CUDAGraph().capture_begin()
    assert not torch.cuda.is_current_stream_capturing()


def capture_within(step: Callable[[], None]) -> None:
    """It may leave the allocator in a capture for ever, so it has a process of its own."""
    graph, other = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    graph.capture_begin()
    with pytest.raises(RuntimeError):
        other.capture_begin()
    with suppress(RuntimeError):  # that may have spoiled the capture
        step()
    with suppress(RuntimeError):
        graph.capture_end()


def capture_by_another_class(step: Callable[[], None]) -> None:
    """`torch.accelerator.Graph` goes to the driver without `torch.cuda.CUDAGraph`."""
    graph = torch.accelerator.Graph()
    graph.capture_begin()
    assert torch.cuda.is_current_stream_capturing()
    step()
    graph.capture_end()
    graph.replay()
    torch.cuda.synchronize()


needs_graph = pytest.mark.skipif(not hasattr(torch.accelerator, "Graph"), reason="needs torch.accelerator.Graph")


@in_full_and_light
@pytest.mark.parametrize("between", [fail_to_begin, pytest.param(capture_by_another_class, marks=needs_graph)])
def test_a_capture_that_cannot_begin_or_is_of_another_class_has_nothing_of_ours_in_it(
    between: Callable[[Callable[[], None]], object], overhead: float, tmp_path: Path
) -> None:
    has_nothing_of_ours(recorded_on("cuda", tmp_path, train_around(between), overhead))


@in_full_and_light
def test_a_capture_within_another_has_nothing_of_ours_in_it(overhead: float, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.gpu.test_8_threads_and_graphs", str(tmp_path), str(overhead)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=MAX_WAIT_S, check=False)
    assert done.returncode == 0, done.stderr


def has_nothing_of_ours(found: Recorded) -> None:
    assert [one.micro_batches for one in found.steps] == [1] * NUM_STEPS
    assert all(isinstance(one.loss, float) for one in found.steps)
    assert all(span.device_us is not None for one in found.steps for span in one.spans)


def test_an_event_of_a_capture_cannot_be_asked_for(tmp_path: Path) -> None:
    graph, event = torch.cuda.CUDAGraph(), torch.cuda.Event()
    with torch.cuda.graph(graph):
        torch.ones(3, device="cuda")
        event.record()
    with pytest.raises(RuntimeError):
        event.query()


if __name__ == "__main__":
    has_nothing_of_ours(recorded_on("cuda", Path(sys.argv[1]), train_around(capture_within), float(sys.argv[2])))
    sys.stdout.flush()
    os._exit(0)  # to end as usual may crash after a spoilt capture
