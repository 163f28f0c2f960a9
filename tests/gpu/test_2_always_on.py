"""Always-on recording on a CUDA device: it adds no synchronisation, and what it reads late is right."""

from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped, NonFiniteSeen
from tests.gpu.cuda_runs import TRAIN_PLAINLY, needs_cuda, record_text, synchronisation_is_an_error
from tests.recorder.recording import EVERY_STEP_IN_FULL, HARDLY_ANY_IN_FULL, Recorded, open_session

pytestmark = [*needs_cuda, pytest.mark.xdist_group("always on")]

BAD_STEP = 7


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    text = TRAIN_PLAINLY.replace("STEPS", "12").replace(
        "    loss =", f"    inputs *= float('nan') ** (number == {BAD_STEP})\n    loss ="
    )
    return record_text(tmp_path_factory.mktemp("nan"), text, "--windows", "none")


@pytest.mark.parametrize("overhead", [EVERY_STEP_IN_FULL, HARDLY_ANY_IN_FULL], ids=["full", "light"])
def test_one_hundred_recorded_steps_add_no_synchronisation(overhead: float, tmp_path: Path) -> None:
    model = torch.nn.Linear(256, 256, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=100)
    inputs = torch.randn(64, 256, device="cuda")
    session = open_session(tmp_path / "run", memory_steps=(), overhead=overhead)
    session.start()
    torch.cuda.synchronize()
    try:
        with synchronisation_is_an_error():
            for _ in range(100):
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
    finally:
        session.end()
    recorded = Recorded(folder=tmp_path / "run")
    assert recorded.events(CollectorStopped) == []
    assert len(recorded.steps) == 100
    assert all(isinstance(step.loss, float) for step in recorded.steps)


def test_the_driver_sees_no_further_synchronisation(tmp_path: Path) -> None:
    """torch's own mode does not know all calls that wait: the profiler counts those of the driver."""
    model = torch.nn.Linear(256, 256, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(64, 256, device="cuda")

    def count() -> int:
        with torch.profiler.profile() as profiler:
            for _ in range(20):
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
        return sum("ynchronize" in event.name for event in profiler.events() or [])

    count()
    bare = count()
    session = open_session(tmp_path / "run", memory_steps=())
    session.start()
    try:
        assert count() == bare
    finally:
        session.end()


def test_a_nan_is_told_of_the_step_it_came_in_and_stages_have_their_time_on_the_device(recorded: Recorded) -> None:
    assert [step.loss == "nan" for step in recorded.steps[: BAD_STEP + 1]] == [False] * BAD_STEP + [True]
    assert recorded.events(NonFiniteSeen)[0].step == BAD_STEP
    spans = [span for step in recorded.steps[2:] for span in step.spans if span.stage != "data"]
    assert spans
    assert all(span.device_us is not None and span.device_us > 0 for span in spans)
