"""How much memory there is, and how much of it is used."""

import math
from pathlib import Path

import pytest

from efprof.facts.run.run_limits import RunLimits, memory_fraction
from efprof.model.severity import DAY_S, MONTH_S
from efprof.units import format_bytes
from tests.support.builders import GPU, make_step, make_steps, write_run


def test_what_was_used_is_read_from_the_last_step_that_tells_on_the_host_or_a_device(tmp_path: Path) -> None:
    steps = [*make_steps(3), make_step(3, rss_bytes=600_000_000), make_step(4, rss_bytes=0), make_step(5, rss_bytes=0)]
    limits = write_run(tmp_path, steps=steps).get(RunLimits)
    assert (limits.name, limits.used_bytes, limits.last_step) == ("the host", 600_000_000, 5)
    steps = [make_step(0, allocated_bytes=[1, 2, 2, 2, 7]), make_step(1, memory=[])]
    limits = write_run(tmp_path / "second", steps=steps, devices=[GPU], memory_source="CUDA allocator").get(RunLimits)
    assert (limits.name, limits.used_bytes) == (GPU.name, 7)
    limits = write_run(tmp_path / "third", steps=[]).get(RunLimits)
    assert (limits.used_bytes, limits.last_step, limits.num_steps) == (0, 0, 0)


def on_gpu(folder: Path, *, step_s: float = 1.0, **fields: str) -> RunLimits:
    """Of 41 steps, of which the first alone was read: it keeps 100 bytes."""
    steps = [make_step(0, allocated_bytes=[100] * 5), *(make_step(step, memory=[]) for step in range(1, 41))]
    for step in steps:
        step.started_ns = round(step.step * step_s * 1e9)
    return write_run(folder, steps=steps, devices=[GPU], memory_source="CUDA allocator", **fields).get(RunLimits)


def test_what_is_left_lasts_as_many_steps_as_take_it_and_each_as_long_as_steps_took(tmp_path: Path) -> None:
    rest = GPU.total_bytes - 100
    assert on_gpu(tmp_path / "seconds").seconds_left(rest / 50) == pytest.approx(50)
    assert on_gpu(tmp_path / "minutes", step_s=60.0).seconds_left(rest / 50) == pytest.approx(3000)
    assert on_gpu(tmp_path / "full").seconds_left(rest * 2) == pytest.approx(0.5)
    assert on_gpu(tmp_path / "even").seconds_left(0.0) == math.inf
    host = write_run(tmp_path / "no host", steps=make_steps(3), host=None).get(RunLimits)
    assert (host.total_bytes, host.seconds_left(100.0)) == (0, math.inf)


def test_the_outlook_is_a_time_with_the_steps_it_was_seen_for_and_none_beyond_a_year(tmp_path: Path) -> None:
    limits, rest = on_gpu(tmp_path / "run"), GPU.total_bytes - 100
    whole = f". The {format_bytes(GPU.total_bytes)} of {GPU.name} last about"
    assert limits.outlook(rest / 240) == f"{whole} 4 minutes at this rate, seen for 41 steps"
    assert limits.outlook(rest / 240, read_until=7) == f"{whole} 4 minutes at this rate, seen up to step 7"
    year_s = 365 * DAY_S
    assert limits.outlook(rest / (year_s - 86_400)) == f"{whole} 360 days at this rate, seen for 41 steps"
    assert limits.outlook(rest / (year_s + 1)) == ""
    ran_out = on_gpu(tmp_path / "ended", ended="out_of_memory")
    assert ran_out.outlook(rest / 240) == " and ended this run at step 40"


def test_growth_is_as_severe_as_memory_is_soon_full(tmp_path: Path) -> None:
    limits, rest = on_gpu(tmp_path / "run"), GPU.total_bytes - 100
    left_s = (DAY_S - 60, DAY_S + 60, MONTH_S - 60, MONTH_S + 60)
    assert [limits.severity(rest / seconds) for seconds in left_s] == ["high", "medium", "medium", "low"]
    assert on_gpu(tmp_path / "ended", ended="out_of_memory").severity(rest / (2 * MONTH_S)) == "high"


def test_a_limit_of_the_program_is_all_it_has_and_a_fraction_that_limits_nothing_is_none(tmp_path: Path) -> None:
    fields = {"devices": [GPU], "memory_source": "CUDA allocator", "settings": {"memory fraction": "0.25"}}
    limits = write_run(tmp_path, steps=make_steps(3), **fields).get(RunLimits)
    assert limits.total_bytes == GPU.total_bytes // 4
    assert limits.name == f"the program's own share of {GPU.name}"


@pytest.mark.parametrize("text", ["1.0", "0.0", "unknown"])
def test_a_fraction_that_limits_nothing_is_none(text: str, tmp_path: Path) -> None:
    assert memory_fraction(write_run(tmp_path, settings={"memory fraction": text})) == 1
