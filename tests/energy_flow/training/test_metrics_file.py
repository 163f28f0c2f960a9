from pathlib import Path

import pytest

from energy_flow.errors import EnergyFlowError
from energy_flow.training.epoch_summary import StepOutcome
from energy_flow.training.metrics_file import MetricsFile, past_steps
from tests.energy_flow.training.step_numbers import metrics


def _write(file: Path, steps: range, *, first_step: int = 0) -> bytes:
    opened = MetricsFile(file, first_step=first_step)
    for step in steps:
        opened.write(metrics(step, step_ms=1.0, wait_ms=1.0, samples_per_second=1.0))
    opened.close()
    return file.read_bytes()


def test_a_file_killed_at_any_byte_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    whole = _write(tmp_path / "whole", range(1, 5))
    two_lines = sum(map(len, whole.splitlines(keepends=True)[:2]))
    for length in range(two_lines, len(whole) + 1, 7):
        (tmp_path / "broken").write_bytes(whole[:length])
        assert _write(tmp_path / "broken", range(3, 5), first_step=2) == whole


@pytest.mark.parametrize("line", [b"\x00\x00\x00\n", b"null\n", b'{"step": 2}\n', b"[1]\n"])
def test_what_is_no_step_is_dropped_with_all_that_follows(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "metrics"
    first, second = _write(file, range(1, 3)).splitlines(keepends=True)
    file.write_bytes(first + line + second)
    assert [outcome.step for outcome in _past_after(file, 5)] == [1]


def test_past_steps_are_read_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "metrics"
    opened = MetricsFile(file, first_step=0)
    opened.write(metrics(1, loss=0.1 + 0.2, gradient_norm=float("inf"), is_skipped=True, step_ms=12.5))
    opened.close()
    expected = StepOutcome(step=1, loss=0.1 + 0.2, gradient_norm=float("inf"), is_skipped=True, step_ms=12.5)
    assert _past_after(file, 1) == [expected]


def test_a_run_from_the_beginning_keeps_nothing_and_a_line_without_its_end_is_dropped(tmp_path: Path) -> None:
    assert list(past_steps(tmp_path / "metrics")) == []
    _write(tmp_path / "metrics", range(1, 4))
    assert [outcome.step for outcome in _past_after(tmp_path / "metrics", 0)] == []
    file = tmp_path / "metrics"
    file.write_bytes(_write(file, range(1, 3))[:-1])
    assert [outcome.step for outcome in _past_after(file, 5)] == [1]


def _past_after(file: Path, first_step: int) -> list[StepOutcome]:
    MetricsFile(file, first_step=first_step).close()
    return list(past_steps(file))


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl", first_step=0)
    file.close()
    file._stream = Path("/dev/full").open("a", encoding="utf-8")  # noqa: SIM115
    file._stream.write("{}")
    for write in (file.flush, file.sync, file.close):
        with pytest.raises(EnergyFlowError, match=r"metrics\.jsonl: No space left"):
            write()
