"""Steps are read one by one, whatever line they share."""

from pathlib import Path

import msgspec

from efprof.artifacts.steps import HAS_PAUSE, IS_SKIPPED, STEPS_FILE, LightLine, StepRecord, read_steps


def single(number: int) -> bytes:
    record = StepRecord(
        step=number, started_ns=0, total_us=9.0, spans=[], memory=[], cpu_us=4.5, rss_bytes=1, micro_batches=1,
        samples=32, recorder_us=0.0,
    )  # fmt: skip
    return msgspec.json.encode(record) + b"\n"


def light(*rows: tuple[int, int, float, int, float | str | None, int]) -> bytes:
    return msgspec.json.encode(LightLine(light=list(rows), recorder_us=3.0, loader=0)) + b"\n"


def test_light_steps_that_share_a_line_come_in_order_and_a_torn_line_loses_no_other(tmp_path: Path) -> None:
    rows = light((1, 100, 7.0, 2, 0.5, HAS_PAUSE), (3, 300, 8.0, 1, "nan", IS_SKIPPED))
    (tmp_path / STEPS_FILE).write_bytes(single(0) + rows + rows[:40] + b"\n" + single(2))
    steps, num_torn = read_steps(tmp_path)
    assert ([step.step for step in steps], num_torn) == ([0, 1, 2, 3], 1)
    assert [(step.is_full, step.is_skipped, step.has_pause) for step in steps[1::2]] == [
        (False, False, True), (False, True, False)
    ]  # fmt: skip
    assert (steps[1].total_us, steps[1].micro_batches, steps[1].loss, steps[3].loss) == (7.0, 2, 0.5, "nan")
