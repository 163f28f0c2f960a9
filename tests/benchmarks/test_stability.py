"""The checklist of `make stability` on what was seen: each point holds on sound training and fails on its own fault."""

import math
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks import stability
from benchmarks.stability_checks import LONG_PHASE_STEPS, MIN_STEPS, Outcome, Seen, outcomes
from benchmarks.stability_phases import Phase, phases_of
from benchmarks.stability_watch import NUM_PROFILED, watch
from energy_flow.data.batch import Batch
from energy_flow.data.dataset import build_dataset
from energy_flow.training.energy_trainer import EnergyTrainer
from energy_flow.training.metrics import MetricsLog

NUM_STEPS = 300


def sound() -> Seen:
    return Seen(
        batch_size=8,
        clip_norm=1.0,
        peak_bytes=[50e6, 60e6, *[70e6] * (NUM_STEPS - 2)],
        retained_bytes=[30e6 + 1000 * (step % 3) for step in range(NUM_STEPS)],
        step_ms=[50.0, *[10.0] * (NUM_STEPS - 1)],
        reference_ms=[0.5] * NUM_STEPS,
        clipped_norm=[0.5] * (NUM_STEPS - 1) + [1.0],
        gru_input=[3.0] * NUM_STEPS,
        gru_hidden=[0.9] * NUM_STEPS,
        loss=[2.0 - step / NUM_STEPS for step in range(NUM_STEPS)],
        gradient_norm=[1.5] * NUM_STEPS,
        is_skipped=[False] * NUM_STEPS,
    )


def broken(seen: Seen) -> list[str]:
    return [outcome.point for outcome in outcomes(seen, NUM_STEPS) if not outcome.is_held]


def test_sound_training_holds_every_point() -> None:
    assert broken(sound()) == []


@pytest.mark.parametrize(
    ("fault", "point"),
    [
        (replace(sound(), peak_bytes=[70e6] * 200 + [71e6] * 100), "peak memory after step 3"),
        (replace(sound(), step_ms=[10.0] * 150 + [11.5] * 150), "step time, last third to first"),
        (replace(sound(), reads=["aten::item"]), "host reads in the last steps"),
        (replace(sound(), gradient_norm=[float("nan")] * NUM_STEPS), "non-finite losses, norms, skips"),
        (replace(sound(), is_skipped=[True] * NUM_STEPS), "non-finite losses, norms, skips"),
        (replace(sound(), clipped_norm=[1.1] * NUM_STEPS), "clipped gradient norm"),
        (replace(sound(), gru_hidden=[1.1] * NUM_STEPS), "GRU input and state"),
        (replace(sound(), gru_input=[1e3] * NUM_STEPS), "GRU input and state"),
        (replace(sound(), gru_input=[3.0, math.nan, 3.0] * 100), "GRU input and state"),
        (replace(sound(), clipped_norm=[0.5, math.nan, 0.5] * 100), "clipped gradient norm"),
        (replace(sound(), loss=[2.0] * NUM_STEPS), "loss, first tenth to last"),
        (
            replace(sound(), retained_bytes=[30e6 + 1000.0 * step for step in range(NUM_STEPS)]),
            "memory's slope, bytes per step",
        ),
        (replace(sound(), error="out of memory"), "all steps, at the batch size"),
    ],
)
def test_each_fault_breaks_its_own_point(fault: Seen, point: str) -> None:
    assert broken(fault) == [point]


def test_a_machine_that_slows_down_is_no_training_that_does() -> None:
    slowed = replace(sound(), step_ms=[10.0] * 150 + [15.0] * 150, reference_ms=[0.5] * 150 + [0.75] * 150)
    assert broken(slowed) == []


def test_a_long_phase_may_not_grow_at_all() -> None:
    seen = sound()
    seen.retained_bytes = [30e6 + 2.0 * step for step in range(LONG_PHASE_STEPS)]
    assert broken(seen) == ["memory's slope, bytes per step"]


def test_a_phase_that_broke_off_holds_nothing() -> None:
    broken_off = outcomes(Seen(batch_size=8, clip_norm=1.0, error="out of memory"), NUM_STEPS)
    assert {outcome.is_held for outcome in broken_off} == {False}
    assert broken_off[0] == Outcome(point=broken_off[0].point, is_held=False, figure="out of memory")


@pytest.mark.parametrize("bytes_per_step", [320.0, 512.0], ids=["cpu", "cuda"])
def test_a_loss_that_is_kept_without_its_graph_is_seen_in_a_short_phase(bytes_per_step: float) -> None:
    seen = replace(sound(), retained_bytes=[30e6 + bytes_per_step * step for step in range(NUM_STEPS)])
    assert broken(seen) == ["memory's slope, bytes per step"]


@pytest.mark.parametrize("num_steps", range(MIN_STEPS + NUM_PROFILED + 4))
def test_training_that_broke_off_at_any_step_is_judged(num_steps: int) -> None:
    seen = replace(sound(), error="out of memory")
    of_watched = {"peak_bytes", "retained_bytes", "step_ms", "reference_ms"}
    for name in (field.name for field in fields(seen) if isinstance(getattr(seen, field.name), list)):
        num_seen = max(0, num_steps - NUM_PROFILED) if name in of_watched else num_steps
        setattr(seen, name, getattr(seen, name)[:num_seen])
    assert "all steps, at the batch size" in broken(seen)


def test_a_name_that_no_phase_has_is_refused() -> None:
    result = CliRunner().invoke(stability.main, ["--phases", "basic,lnog"])
    assert result.exit_code == 2
    assert "no phase begins with 'lnog'; choose from basic, mixed precision, everything on, long" in result.output


@pytest.mark.long
def test_a_training_process_that_ended_in_an_error_holds_nothing(tmp_path: Path) -> None:
    seen = stability.watched(phases_of("cpu")[0], "cpu", tmp_path)  # without a dataset
    assert seen.error == "ended with status 1"


def watched_debug(folder: Path, device: str) -> Seen:
    phase = Phase(name="short", config_name="debug", steps=8, assignments=("runtime.precision=float32",))
    config = phase.config(device)
    build_dataset(config, folder / "data")
    return watch(phase, device, folder / "data", folder / "out")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("out of memory\nTried to allocate"), "out of memory"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_an_error_in_the_first_step_is_told(
    error: Exception, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(EnergyTrainer, "train_batch", fails)
    seen = watched_debug(tmp_path, "cpu")
    assert seen.error == told
    assert seen.loss == seen.gru_input == seen.peak_bytes == []


def read_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    train_batch = EnergyTrainer.train_batch

    def reads(self: EnergyTrainer, batch: Batch, metrics: MetricsLog) -> None:
        train_batch(self, batch, metrics)
        next(self.model.parameters()).sum().item()

    monkeypatch.setattr(EnergyTrainer, "train_batch", reads)


@pytest.mark.long
def test_a_read_in_the_step_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched_debug(tmp_path / "sound", "cpu").reads == []
    read_in_every_step(monkeypatch)
    assert "aten::item" in watched_debug(tmp_path / "sick", "cpu").reads


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_read_in_the_step_is_seen_on_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched_debug(tmp_path / "sound", "cuda").error == ""
    read_in_every_step(monkeypatch)
    (told,) = watched_debug(tmp_path / "sick", "cuda").reads
    assert "synchronizing CUDA operation" in told
    assert torch.cuda.get_sync_debug_mode() == 0
