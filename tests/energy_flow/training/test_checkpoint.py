import dataclasses
import logging
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from energy_flow.config_parsing import load_config
from energy_flow.energy_config import EnergyConfig
from energy_flow.errors import EnergyFlowError
from energy_flow.training.checkpoint import Progress, load_latest, write_checkpoint

LEARNING_RATE = 0.1 + 2**-54  # of which no digit may be lost


class Run:
    """A small model and its optimizer, trained for a step."""

    def __init__(self, seed: int, *, learning_rate: Tensor | float = LEARNING_RATE, width: int = 4) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate, fused=True)
        self.step()

    def step(self) -> None:
        self.model(torch.randn(8, 3)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def write(self, out: Path, config: EnergyConfig, step: int = 5, **extra: Any) -> Path:
        progress = Progress(step=step, num_batches=2 * step)
        return write_checkpoint(
            out, config=config, progress=progress, model=self.model, optimizer=self.optimizer, extra=extra
        )

    def load(self, out: Path, config: EnergyConfig) -> tuple[Progress, dict[str, Any]]:
        return load_latest(out, config=config, model=self.model, optimizer=self.optimizer)


def _is_same(one: Run, other: Run) -> bool:
    tensors, others = (
        [*run.model.state_dict().values()]
        + [value for state in run.optimizer.state_dict()["state"].values() for value in state.values()]
        for run in (one, other)
    )
    return all(torch.equal(tensor, other_tensor) for tensor, other_tensor in zip(tensors, others, strict=True))


@contextmanager
def _no_larger_files_than(num_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_brings_back_weights_buffers_moments_and_what_was_added(
    config: EnergyConfig, tmp_path: Path
) -> None:
    before, after = Run(0), Run(1)
    added = {"scale": torch.tensor([3.5, float("nan")]), "norms": [1.5, 2.5], "deep": {"count": 7}}
    before.write(tmp_path, config, gradients=added)
    assert not _is_same(before, after)
    progress, extra = after.load(tmp_path, config)
    assert _is_same(before, after)
    assert progress == Progress(step=5, num_batches=10, num_processes=1)
    torch.testing.assert_close(extra, {"gradients": added}, rtol=0, atol=0, equal_nan=True)


def test_a_checkpoint_holds_weights_buffers_and_every_setting_in_files_of_their_own(
    config: EnergyConfig, tmp_path: Path
) -> None:
    run = Run(0)
    folder = run.write(tmp_path, config)
    weights = load_file(folder / "model.safetensors")
    assert weights.keys() == run.model.state_dict().keys()
    assert torch.equal(weights["1.running_var"], run.model[1].running_var)
    state = torch.load(folder / "state.pt", weights_only=True)
    assert state["config"] == dataclasses.asdict(config)


def test_random_numbers_go_on_where_they_were(config: EnergyConfig, tmp_path: Path) -> None:
    def draw() -> list[float]:
        return [random.random(), random.gauss(), np.random.rand(), np.random.randn(), torch.rand(()).item()]

    draw()  # leaves half of a pair of normal numbers for the next
    run = Run(0)
    run.write(tmp_path, config)
    expected = draw()
    assert draw() != expected
    run.load(tmp_path, config)
    assert draw() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_learning_rate_on_the_device_stays_that_tensor_with_the_saved_bits(
    config: EnergyConfig, tmp_path: Path, dtype: torch.dtype
) -> None:
    saved = torch.tensor(LEARNING_RATE, dtype=dtype)
    Run(0, learning_rate=saved).write(tmp_path, config)
    present = torch.tensor(0.5, dtype=dtype)
    run = Run(1, learning_rate=present)
    run.load(tmp_path, config)
    assert run.optimizer.param_groups[0]["lr"] is present
    assert torch.equal(present, saved)


def test_a_learning_rate_that_is_a_number_comes_back_and_other_settings_are_those_of_now(
    config: EnergyConfig, tmp_path: Path
) -> None:
    Run(0).write(tmp_path, config)
    run = Run(1, learning_rate=0.5)
    (group,) = run.optimizer.param_groups
    group["weight_decay"] = 0.25
    run.load(tmp_path, config)
    (group,) = run.optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (LEARNING_RATE, 0.25)


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt"])
@pytest.mark.parametrize("share", [None, 0.0, 0.5, 0.999])
def test_a_checkpoint_of_which_a_file_is_missing_or_cut_is_passed_over_with_a_warning(
    config: EnergyConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, share: float | None
) -> None:
    older, newer, run = Run(0), Run(1), Run(2)
    older.write(tmp_path, config, 5)
    file = newer.write(tmp_path, config, 6) / name
    if share is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    progress, _ = run.load(tmp_path, config)
    assert progress.step == 5
    assert _is_same(run, older)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "step-000006" in caplog.text


def test_checkpoints_that_are_all_damaged_are_an_error(config: EnergyConfig, tmp_path: Path) -> None:
    run = Run(0)
    for step in (5, 6):
        (run.write(tmp_path, config, step) / "state.pt").write_bytes(b"nothing")
    with pytest.raises(EnergyFlowError, match=f"no checkpoint in {tmp_path} can be read"):
        run.load(tmp_path, config)


def test_a_checkpoint_that_would_run_code_runs_nothing(config: EnergyConfig, tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "proof",)

    run = Run(0)
    torch.save({"format_version": Attack()}, run.write(tmp_path, config) / "state.pt")
    with pytest.raises(EnergyFlowError):
        run.load(tmp_path, config)
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize(
    ("assignments", "named"),
    [
        (["lattice.width=9", "bridge.model_size=32"], "lattice.width: 9 there, 8 here"),
        (["carrier.hidden_size=32", "training.seed=3"], "carrier.hidden_size: 32 there, 16 here"),
        (["bridge.num_heads=1"], "bridge.num_heads: 1 there, 2 here"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_by_its_first_differing_setting(
    config: EnergyConfig, tmp_path: Path, assignments: list[str], named: str
) -> None:
    run = Run(0)
    folder = run.write(tmp_path, load_config("debug", assignments=assignments))
    with pytest.raises(EnergyFlowError, match=named) as caught:
        run.load(tmp_path, config)
    assert str(folder) in str(caught.value)


def test_settings_of_speed_and_length_may_differ_and_those_that_make_it_another_run_are_told(
    config: EnergyConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(0)
    changes = ["data.num_workers=3", "training.log_interval=3", "runtime.progress=off", "training.steps=99"]
    run.write(tmp_path, load_config("debug", assignments=changes))
    run.load(tmp_path, config)
    assert caplog.records == []
    run.write(tmp_path, load_config("debug", assignments=["training.seed=3", "optimizer.learning_rate=0.5"]))
    with caplog.at_level(logging.WARNING):
        run.load(tmp_path, config)
    assert "optimizer.learning_rate: 0.5 there, 0.003 here; training.seed: 3 there, 0 here" in caplog.text
    falling = "optimizer.final_learning_rate_share=0.1"
    run.write(tmp_path, load_config("debug", assignments=[falling, "training.steps=40"]))
    run.load(tmp_path, load_config("debug", assignments=[falling, "training.steps=80"]))
    assert "training.steps: 40 there, 80 here" in caplog.text


def test_a_checkpoint_of_another_model_or_a_later_format_is_refused(config: EnergyConfig, tmp_path: Path) -> None:
    folder = Run(0).write(tmp_path, config)
    with pytest.raises(EnergyFlowError, match=f"{folder} .* another model"):
        Run(0, width=5).load(tmp_path, config)
    run = Run(0)
    file = run.write(tmp_path / "second", config) / "state.pt"
    torch.save({**torch.load(file), "format_version": 99}, file)
    with pytest.raises(EnergyFlowError, match="format 99"):
        run.load(tmp_path / "second", config)


def test_a_folder_without_checkpoints_or_with_one_of_an_older_version_is_named(
    config: EnergyConfig, tmp_path: Path
) -> None:
    with pytest.raises(EnergyFlowError, match=f"no checkpoint in {tmp_path}"):
        Run(0).load(tmp_path, config)
    (tmp_path / "checkpoint.pt").touch()
    with pytest.raises(EnergyFlowError, match=r"checkpoint\.pt is of an older version"):
        Run(0).load(tmp_path, config)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.9])
def test_a_full_disk_is_one_sentence_and_leaves_the_earlier_checkpoints(
    config: EnergyConfig, tmp_path: Path, share: float
) -> None:
    run = Run(0)
    folder = run.write(tmp_path, config, 5)
    largest = max(file.stat().st_size for file in folder.iterdir())
    for step in (5, 6):
        refused = pytest.raises(EnergyFlowError, match=f"cannot write a checkpoint to {tmp_path} .*File too large")
        with refused, _no_larger_files_than(int(share * largest)):
            run.write(tmp_path, config, step)
        assert list((tmp_path / "checkpoints").iterdir()) == [folder]
        assert run.load(tmp_path, config)[0].step == 5
