"""zero_learning_rate: fires on the line that builds the schedule, else the optimizer, and leads; silent at its end."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR

from efprof.artifacts.events import Event, OptimizerBuilt
from efprof.audits.zero_learning_rate import zero_learning_rate
from efprof.commands.report import analyse
from efprof.facts.run.run import Run, open_run
from efprof.model import NotRecorded
from efprof.report.verdict import rank_findings
from tests.recorder.recording import line_of, record_here
from tests.recorder.training import make_batch, make_model, train_step
from tests.support.builders import START_NS, make_steps, write_run

Rate = Callable[[int], float | None]

BUILT = OptimizerBuilt(at_ns=START_NS, step=0, number=0, site="train.py:1:train", optimizer="Adam", num_parameters=4)


def run_of(folder: Path, rate: Rate, *events: Event, num_steps: int = 400) -> Run:
    steps = make_steps(num_steps, learning_rate=rate)
    return write_run(
        folder / "run", steps=steps, events=events or [BUILT], sources={"train.py": "optimizer = Adam()\n"}
    )


def train(scheduled: Callable[[torch.optim.Optimizer], object], lr: float | torch.Tensor = 0.1, num: int = 60) -> None:
    model = make_model()
    optimizer = torch.optim.Adam([{"params": one.parameters()} for one in (model[0], model[2])], lr=lr)
    schedule = scheduled(optimizer)
    for _ in range(num):
        train_step(model, optimizer, *make_batch())
        if isinstance(schedule, torch.optim.lr_scheduler.LRScheduler):
            schedule.step()


def too_short(optimizer: torch.optim.Optimizer) -> object:
    return LambdaLR(optimizer, lambda update: max(0.0, 1 - update / 20))  # too short


def never_stepped(optimizer: torch.optim.Optimizer) -> object:
    return [LinearLR(optimizer, 1e-30, 1.0, total_iters=10)]  # never stepped


def at_its_end(optimizer: torch.optim.Optimizer) -> object:
    return CosineAnnealingLR(optimizer, T_max=59)


def warmed_up_from_zero(optimizer: torch.optim.Optimizer) -> object:
    return LambdaLR(optimizer, lambda update: min(1.0, update / 30))


def one_group_frozen(optimizer: torch.optim.Optimizer) -> object:
    return LambdaLR(optimizer, [lambda _: 0.0, lambda _: 1.0])


def lines_found(folder: Path, program: Callable[[], None]) -> list[int]:
    recorded = record_here(folder / "run", program)
    return [one.blame.line for one in zero_learning_rate(open_run(recorded.folder)).findings]


@pytest.mark.parametrize(("scheduled", "marker"), [(too_short, "too short"), (never_stepped, "never stepped")])
def test_in_a_recorded_program_it_blames_the_line_that_builds_the_schedule(
    tmp_path: Path, scheduled: Callable[[torch.optim.Optimizer], object], marker: str
) -> None:
    assert lines_found(tmp_path, lambda: train(scheduled)) == [line_of(Path(__file__), marker)]


@pytest.mark.parametrize("scheduled", [at_its_end, warmed_up_from_zero, one_group_frozen])
def test_it_is_silent_of_schedules_that_touch_zero_and_of_a_frozen_group(
    tmp_path: Path, scheduled: Callable[[torch.optim.Optimizer], object]
) -> None:
    assert lines_found(tmp_path, lambda: train(scheduled)) == []


def test_a_rate_that_is_a_tensor_is_read(tmp_path: Path) -> None:
    assert lines_found(tmp_path, lambda: train(lambda _: None, lr=torch.tensor(0.1))) == []


def test_an_optimizer_that_learns_beside_one_at_zero_is_enough(tmp_path: Path) -> None:
    def two() -> None:
        model = make_model()
        optimizers = [torch.optim.SGD(model[at].parameters(), lr=lr) for at, lr in ((0, 0.0), (2, 0.1))]
        for _ in range(60):
            model(make_batch()[0]).mean().backward()
            for one in optimizers:
                one.step()
                one.zero_grad()

    assert lines_found(tmp_path, two) == []


def test_a_rate_at_zero_to_the_end_is_high_and_leads(tmp_path: Path) -> None:
    (finding,) = zero_learning_rate(run_of(tmp_path, lambda step: 0.1 if step < 300 else 0.0)).findings
    assert (str(finding.blame), finding.severity) == ("train.py:1", "high")
    assert finding.message.startswith("The learning rate is 0 from step 300 to 399 of 400")
    assert finding.why.startswith("It was 0.1 before; this line builds the optimizer")
    assert rank_findings(analyse(tmp_path / "run"))[0].audit_id == "zero_learning_rate"


def test_a_rate_that_comes_back_or_is_zero_for_the_last_percents_is_medium(tmp_path: Path) -> None:
    rates: tuple[Rate, ...] = (lambda step: float(step >= 50), lambda step: float(step < 780))
    for number, rate in enumerate(rates):
        (finding,) = zero_learning_rate(run_of(tmp_path / str(number), rate, num_steps=800)).findings
        assert finding.severity == "medium"


def test_it_is_silent_of_fewer_updates(tmp_path: Path) -> None:
    rates: tuple[Rate, ...] = (lambda step: float(step < 381), lambda step: float(step >= 39), lambda _: 0.1)
    for number, rate in enumerate(rates):
        assert zero_learning_rate(run_of(tmp_path / str(number), rate)).findings == ()


def test_two_readings_of_a_rate_are_too_few(tmp_path: Path) -> None:
    rate: Rate = lambda step: {0: 0.1, 200: 0.0, 399: 0.0}.get(step)  # noqa: E731
    assert zero_learning_rate(run_of(tmp_path, rate)).findings == ()


def test_a_run_that_tells_no_rate_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="learning rate"):
        zero_learning_rate(run_of(tmp_path, lambda _: None))
