"""How much memory there is, and how much of it is used."""

from pathlib import Path

import pytest

from efprof.facts.run.run_limits import RunLimits, memory_fraction
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


def test_the_end_is_counted_from_the_step_that_was_read_and_lies_in_no_past(tmp_path: Path) -> None:
    steps = [make_step(0, allocated_bytes=[100] * 5), *(make_step(step, memory=[]) for step in range(1, 41))]
    limits = write_run(tmp_path, steps=steps, devices=[GPU], memory_source="CUDA allocator").get(RunLimits)
    assert limits.end_step((GPU.total_bytes - 100) / 50) == 50
    assert limits.end_step((GPU.total_bytes - 100) / 10) == 40, "the run's last step, which did not end it"


def test_a_limit_of_the_program_is_all_it_has_and_a_fraction_that_limits_nothing_is_none(tmp_path: Path) -> None:
    fields = {"devices": [GPU], "memory_source": "CUDA allocator", "settings": {"memory fraction": "0.25"}}
    limits = write_run(tmp_path, steps=make_steps(3), **fields).get(RunLimits)
    assert limits.total_bytes == GPU.total_bytes // 4
    assert limits.name == f"the program's own share of {GPU.name}"


@pytest.mark.parametrize("text", ["1.0", "0.0", "unknown"])
def test_a_fraction_that_limits_nothing_is_none(text: str, tmp_path: Path) -> None:
    assert memory_fraction(write_run(tmp_path, settings={"memory fraction": text})) == 1
