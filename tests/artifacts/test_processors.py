"""A container's share of the processors counts, however the machine counts them."""

import os
from pathlib import Path

import pytest

from efprof.artifacts import processors
from efprof.artifacts.processors import limit_periods, num_processors, throttled_share

BOUND = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, files: dict[str, str]) -> int:
    """Of a process in this group, on a machine of eight; `files` are those of the groups by their paths."""
    (tmp_path / "cgroup").write_text(group)
    for name, text in files.items():
        path = tmp_path / "mounted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(processors, "OF_PROCESS", tmp_path / "cgroup")
    monkeypatch.setattr(processors, "MOUNTED", tmp_path / "mounted")
    monkeypatch.setattr(processors.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    return num_processors()


def test_version_2_the_smallest_share_of_all_groups_around_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"cpu.max": "300000 100000\n", "job/cpu.max": "max 100000\n", "job/task/cpu.max": "max 100000\n"}
    assert of(tmp_path, monkeypatch, "0::/job/task\n", files) == 3


def test_version_1_a_part_of_a_processor_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"cpu/slow/cpu.cfs_quota_us": "150000", "cpu/slow/cpu.cfs_period_us": "100000"}
    assert of(tmp_path, monkeypatch, "4:memory:/x\n1:cpu:/slow\n0::/\n", files) == 2


@pytest.mark.parametrize("group", ["0::/\n", "1:cpu,cpuacct:/\n", ""])
def test_without_a_limit_those_that_it_is_bound_to_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    files = {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}
    assert of(tmp_path, monkeypatch, group, files) == 8


def test_where_nothing_is_known_of_groups_it_is_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "OF_PROCESS", tmp_path / "none")
    assert num_processors() == BOUND


@pytest.mark.parametrize(
    ("group", "name", "time"),
    [
        ("0::/job\n", "job/cpu.stat", "throttled_usec 1600000"),
        ("1:cpu,cpuacct:/job\n", "cpu/job/cpu.stat", "throttled_time 1600000000"),
    ],
    ids=["version 2", "version 1"],
)
def test_a_limit_is_told_by_the_periods_in_which_it_held_back_however_many_cores_that_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, name: str, time: str
) -> None:
    of(tmp_path, monkeypatch, group, {name: "nr_periods 70\nnr_throttled 60\n"})
    before = limit_periods()
    of(tmp_path, monkeypatch, group, {name: f"nr_periods 80\nnr_throttled 61\n{time}\n"})
    assert throttled_share(before) == 0.1


def test_without_a_limit_nothing_was_held_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of(tmp_path, monkeypatch, "0::/\n", {"cpu.stat": "usage_usec 9000000\n"})
    assert throttled_share(limit_periods()) == 0.0
