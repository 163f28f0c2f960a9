"""skipped_updates: fires on the line that makes a scaler which goes on skipping, is silent while it finds its scale."""

from collections.abc import Container
from pathlib import Path
from typing import Any

import pytest

from efprof.artifacts.events import ScalerBuilt
from efprof.artifacts.steps import StepRecord
from efprof.audits.nonfinite_loss import nonfinite_loss
from efprof.audits.skipped_updates import skipped_updates
from efprof.facts.run.run import Run
from efprof.model import CodeEdit, Finding, NotRecorded, ThinEvidence
from tests.support.builders import START_NS, make_step, write_run

TRAIN = """\
def train(model, optimizer, loader):
    scaler = torch.amp.GradScaler("cuda", growth_interval=10)
    for batch in loader:
        scaler.scale(model(batch)).backward()
        scaler.step(optimizer)
        scaler.update()
"""
BUILT, BACKWARD = "train.py:2:train", "train.py:4:train"
SEARCH = range(4)
OFTEN = (*SEARCH, *range(12, 150, 10))
"""The scaler finds its scale in four steps, and tries a larger one ten steps after each that it skipped."""


def built(**fields: Any) -> ScalerBuilt:
    defaults: dict[str, Any] = {
        "at_ns": START_NS,
        "step": 0,
        "site": BUILT,
        "init_scale": 65536.0,
        "growth_interval": 10,
    }
    return ScalerBuilt(**{**defaults, **fields})


def scaled_steps(skipped: Container[int], num_steps: int = 150, lowest: float = 4096.0) -> list[StepRecord]:
    """Of 15.5 ms each; the scale is `lowest` from step 3 on."""
    return [
        make_step(
            step,
            backward_site=BACKWARD,
            is_skipped=step in skipped,
            gradient_norm="inf" if step in skipped else 1.0,
            scaler_scale=max(lowest, 2.0 ** (15 - min(step, 60))),
        )
        for step in range(num_steps)
    ]


def run_of(folder: Path, steps: list[StepRecord], *events: ScalerBuilt, source: str = TRAIN) -> Run:
    return write_run(folder / "run", steps=steps, events=events or (built(),), sources={"train.py": source})


def found_in(folder: Path, steps: list[StepRecord], *events: ScalerBuilt, source: str = TRAIN) -> Finding:
    (finding,) = skipped_updates(run_of(folder, steps, *events, source=source)).findings
    return finding


def test_it_blames_the_line_that_makes_the_scaler_and_sets_the_scale_that_held(tmp_path: Path) -> None:
    finding = found_in(tmp_path, scaled_steps(OFTEN))
    assert (str(finding.blame), finding.blame.text) == (
        "train.py:2",
        'scaler = torch.amp.GradScaler("cuda", growth_interval=10)',
    )
    assert finding.message == (
        "Of 100 steps after the first 50, the gradient scaler skipped 10 (10 %); these updates were lost."
    )
    assert "to values at which gradients overflow; each such step took 15.5 ms" in finding.why
    assert finding.severity == "high"
    (change,) = finding.fix.changes
    assert isinstance(change, CodeEdit)
    assert change.new == '    scaler = torch.amp.GradScaler("cuda", growth_interval=2000, init_scale=4096.0)'
    assert finding.fix.summary.startswith("Use `GradScaler(init_scale=4096, growth_interval=2000)`, also ")
    gain = finding.gain
    assert gain.step_ms == pytest.approx(15.5 * (10 / 100 - 1 / 2000)), "less what torch's own interval costs"
    low, high = gain.step_ms_interval or (0.0, 0.0)
    assert 0.0 < low < gain.step_ms < high


@pytest.mark.parametrize(
    "made",
    [(built(site=None),), (built(), built(site="train.py:1:train"))],
    ids=["before the recording", "twice, who knows which"],
)
def test_where_the_scalers_line_is_not_known_the_backward_pass_is_blamed(
    tmp_path: Path, made: tuple[ScalerBuilt, ...]
) -> None:
    finding = found_in(tmp_path, scaled_steps(OFTEN), *made)
    assert str(finding.blame) == "train.py:4"
    assert not any(isinstance(change, CodeEdit) for change in finding.fix.changes)


def test_gradients_that_overflow_below_a_scale_of_one_are_not_the_scalers_fault(tmp_path: Path) -> None:
    fix = found_in(tmp_path, scaled_steps(OFTEN, lowest=2.0**-4)).fix
    assert (fix.applicability, fix.changes) == ("manual", ())
    assert "overflow at a scale of 0.0625 too" in fix.summary


@pytest.mark.parametrize(
    "skipped",
    [range(17), range(60), (*SEARCH, 9, 30, 70, 110), (*SEARCH, *range(52, 62))],
    ids=["from 2**16 down to 1", "from a scale far too large", "now and then", "for some time, and then no more"],
)
def test_a_scaler_that_finds_its_scale_is_no_fault(tmp_path: Path, skipped: Container[int]) -> None:
    assert skipped_updates(run_of(tmp_path, scaled_steps(skipped))).findings == ()


def test_what_nonfinite_loss_tells_is_not_said_twice(tmp_path: Path) -> None:
    steps = scaled_steps((*SEARCH, *range(110, 150)))
    for step in steps[110:]:
        step.loss = "nan"
    run = run_of(tmp_path, steps)
    assert len(nonfinite_loss(run).findings) == 1
    assert skipped_updates(run).findings == ()


def test_a_short_run_is_no_evidence(tmp_path: Path) -> None:
    with pytest.raises(ThinEvidence, match="Only 49 steps after the first 50"):
        skipped_updates(run_of(tmp_path, scaled_steps(OFTEN, num_steps=99)))


def test_a_run_without_steps_is_not_applicable(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match=r"steps\.jsonl"):
        skipped_updates(run_of(tmp_path, []))
