"""The trainer benchmark times what it says, and judges it by its requirements."""

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks.intervals import Estimate
from benchmarks.trainer import MIN_RATIO, main, naive_lines, speed_requirement
from benchmarks.trainer_device import (
    DeviceStep,
    OperandBytes,
    covered,
    device_lines,
    kernel_requirement,
    table_line,
)
from benchmarks.trainer_steps import trainer_step
from energy_flow.config_parsing import load_config

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_step_counts_the_samples_of_all_its_micro_batches() -> None:
    config = load_config("debug", assignments=["training.accumulation=3"])
    assert trainer_step(config, torch.device("cpu")).num_samples == 3 * config.training.batch_size


@pytest.mark.parametrize(("ratio", "verdict"), [(MIN_RATIO, "held"), (MIN_RATIO - 0.1, "not held")])
def test_the_speed_is_judged_by_its_median(ratio: float, verdict: str) -> None:
    assert f"loop {verdict}:" in speed_requirement(Estimate(value=ratio))


@pytest.mark.parametrize(("share", "verdict"), [(0.8, "held"), (0.79, "not held")])
def test_the_share_in_kernels_is_judged(share: float, verdict: str) -> None:
    assert f" {verdict}:" in kernel_requirement("large", share)


def test_kernels_that_overlap_are_counted_once() -> None:
    assert covered([(10, 20), (0, 4), (12, 15), (18, 25)]) == 4 + 15


def test_views_move_no_bytes() -> None:
    matrix = torch.zeros(4, 8)
    with OperandBytes() as operands:
        matrix.T.view(8, 4)
        assert operands.total == 0
        matrix + 1
    assert operands.total == 2 * matrix.nbytes


def test_a_device_row_sets_what_is_achieved_against_the_ceilings() -> None:
    step = DeviceStep(
        seconds=0.5, kernel_seconds=0.45, flop=10**14, operand_bytes=10**12, peak_bytes=2**30, num_samples=256
    )
    row = table_line("large", step, flop_per_second=4e14, bytes_per_second=4e12)
    assert row == "| large | 500.0 ms | 512 | 90% | 200.0 | 50% | 2.00 | 50% | 1.0 GiB |"


def test_without_a_gpu_it_says_what_was_not_checked_and_why() -> None:
    assert any(line.startswith("Not checked here: this ran on the cpu") for line in device_lines("cpu"))


def test_the_table_is_written_and_a_speed_too_low_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.trainer.variant_lines", lambda rounds: iter(()))
    monkeypatch.setattr("benchmarks.trainer.naive_lines", lambda rounds: iter([speed_requirement(Estimate(value=39))]))
    report = tmp_path / "reports" / "trainer.md"
    done = CliRunner().invoke(main, ["--device", "cpu", "--write", str(report)])
    assert done.exit_code == 1
    assert report.read_text(encoding="utf-8").strip() == done.output.strip()
    assert "Commit " in done.output


@pytest.mark.long
def test_the_naive_loop_is_timed_beside_the_trainer() -> None:
    lines = list(naive_lines(rounds=1))
    assert any("Equal numbers held" in line for line in lines)
    assert [line.split("|")[1].strip() for line in lines if line.startswith("| ")][2:] == ["trainer", "naive loop"]
