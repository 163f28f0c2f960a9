"""steps.jsonl: what is written for one step, and for many at once, is read as one step each."""

from pathlib import Path

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from efprof.artifacts.steps import STEPS_FILE, StepRecord, read_steps

STAGES = [("forward", 0, 1), ("backward", 2, 3)]


def row(number: int, *, loss: float | None = 0.5) -> tuple[int | float | None, ...]:
    """A step of 9 us that starts at 1 us of its process's clock."""
    return (number, 7_000, 1_000, 10_000, 32, int(loss is not None), -1, loss, 2.5, 0.01, 2_000, 4_000, 5_000, 8_000)


def line_of(*rows: tuple[int | float | None, ...]) -> bytes:
    """As recordings of schema version 1 have it."""
    line = {"alike": rows, "stages": STAGES, "cpu_share": 0.5, "rss_bytes": 123, "recorder_us": 30.0, "loader": 0}
    return msgspec.json.encode(line) + b"\n"


def single(number: int) -> bytes:
    record = StepRecord(
        step=number, started_ns=0, total_us=9.0, spans=[], memory=[], cpu_us=4.5, rss_bytes=1, micro_batches=1,
        samples=32, recorder_us=0.0,
    )  # fmt: skip
    return msgspec.json.encode(record) + b"\n"


def written(folder: Path, content: bytes) -> Path:
    (folder / STEPS_FILE).write_bytes(content)
    return folder


def test_steps_that_share_a_line_are_read_one_by_one(tmp_path: Path) -> None:
    (first, second), num_torn = read_steps(written(tmp_path, line_of(row(3), row(4, loss=None))))
    assert num_torn == 0
    assert (first.step, first.total_us, first.cpu_us, first.loss) == (3, 9.0, 4.5, 0.5)
    assert [(span.stage, span.start_us, span.end_us) for span in first.spans] == [
        ("forward", 1.0, 3.0), ("backward", 4.0, 7.0)
    ]  # fmt: skip
    assert (first.micro_batches, first.samples, first.rss_bytes, first.loader) == (1, 32, 123, 0)
    assert (first.gradient_norm, first.learning_rate) == (2.5, 0.01)
    assert (second.step, second.loss) == (4, None)


def test_a_call_of_a_recording_without_frames_of_libraries_is_the_line_s_own(tmp_path: Path) -> None:
    calls = [{"site": "train.py:3:main", "call": "item", "count": 1, "us": 2.0}]
    line = {"step": 1, "started_ns": 0, "total_us": 9.0, "micro_batches": 1, "recorder_us": 0.0, "reads": calls}
    ((step,), _) = read_steps(written(tmp_path, msgspec.json.encode(line) + b"\n"))
    assert [(read.call, read.library) for read in step.reads] == [("item", ())]
    assert msgspec.to_builtins(step.reads) == calls, "what no library does takes no more room than before"


def test_steps_come_in_order_whatever_line_they_are_in(tmp_path: Path) -> None:
    steps, _ = read_steps(written(tmp_path, single(0) + line_of(row(1), row(3), row(4)) + single(2) + single(5)))
    assert [step.step for step in steps] == [0, 1, 2, 3, 4, 5]


def test_a_torn_line_of_many_steps_and_a_row_that_is_no_step_lose_no_other(tmp_path: Path) -> None:
    torn = line_of(row(1), row(2))[:80] + b"\n"
    damaged = line_of(row(1)).replace(b"forward", b"for\xffard")
    steps, num_torn = read_steps(written(tmp_path, single(0) + torn + damaged + line_of(row(1)[:11])))
    assert [step.step for step in steps] == [0]
    assert num_torn == 3


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(*[st.one_of(st.none(), st.integers(-(2**63), 2**63), st.floats())] * 14), max_size=3))
def test_rows_that_hold_anything_are_read_or_lost(tmp_path: Path, rows: list[tuple[int | float | None, ...]]) -> None:
    steps, num_torn = read_steps(written(tmp_path, line_of(*rows)))
    assert num_torn or len(steps) <= len(rows)
