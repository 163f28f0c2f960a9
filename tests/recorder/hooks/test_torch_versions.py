"""What differs from one torch to another, and that all texts name the same range."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from efprof.artifacts.snapshot import read_snapshot
from efprof.recorder.doctor.checks import MAX_PYTHON, MIN_PYTHON
from efprof.recorder.hooks.torch_versions import (
    CUDA_VARIABLE,
    NEWEST,
    OLDEST,
    PLAIN_VARIABLE,
    Version,
    allocator_settings,
    environment_settings,
    name_of,
    version_of,
    why_untested,
)
from tests.support.sentences import MAX_WORDS

ROOT = Path(__file__).parents[3]
RANGE = f"torch {name_of(OLDEST)} to {name_of(NEWEST)}"

TAKEN = """
import torch
print(torch.cuda.memory._snapshot()["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"])
"""
"""What the allocator took; asking starts no device."""


def fake_torch(release: str, **members: object) -> ModuleType:
    fake = ModuleType("torch")
    fake.__dict__.update({"__version__": release, "_C": SimpleNamespace(**members)})
    return fake


def test_the_project_asks_for_the_oldest_torch_and_names_each_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"torch>={name_of(OLDEST)}" in project["dependencies"]
    assert project["requires-python"] == f">={name_of(MIN_PYTHON)}"
    pythons = re.findall(r"Python :: (3)\.(\d+)", "\n".join(project["classifiers"]))
    assert {(int(major), int(minor)) for major, minor in pythons} == {
        (3, minor) for minor in range(MIN_PYTHON[1], MAX_PYTHON[1] + 1)
    }


@pytest.mark.parametrize("page", ["README.md", "docs/limits.md"])
def test_every_page_names_the_same_range(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    assert RANGE in text
    assert f"Python {name_of(MIN_PYTHON)} to {name_of(MAX_PYTHON)}" in text


@pytest.mark.parametrize(
    ("release", "expected"),
    [("2.11.0+cu130", (2, 11)), ("2.16.0a0+git1f3", (2, 16)), ("2.15.0.dev20261101", (2, 15)), ("3.0", (3, 0))],
)
def test_a_release_is_its_first_two_numbers(release: str, expected: Version) -> None:
    assert version_of(fake_torch(release)) == expected


@pytest.mark.parametrize("release", ["2.6.0", "2.16.0+cu140", "3.0.0"])
def test_a_torch_out_of_the_range_is_one_sentence(release: str) -> None:
    sentence = why_untested(fake_torch(release))
    assert sentence == f"efprof was tested with {RANGE}, not with {release}: what does not work is left out."
    assert len(sentence.split()) <= MAX_WORDS


def test_a_torch_within_the_range_is_not_spoken_of() -> None:
    for release in ("2.7.0", "2.9.1+cu128", "2.15.4"):
        assert why_untested(fake_torch(release)) is None
    assert why_untested(torch) is None


@pytest.mark.parametrize("release", ["2.10.0", "2.11.0"])
def test_a_torch_that_does_not_tell_its_settings_has_them_from_either_variable(release: str) -> None:
    torch = fake_torch(release)
    assert allocator_settings(torch, {PLAIN_VARIABLE: "max_split_size_mb:64"}) == "max_split_size_mb:64"
    both = {PLAIN_VARIABLE: "max_split_size_mb:64", CUDA_VARIABLE: "max_split_size_mb:128"}
    assert allocator_settings(torch, both) == "max_split_size_mb:128"
    assert allocator_settings(torch, {}) == ""


def test_what_was_set_at_run_time_is_told_by_a_torch_that_knows_it() -> None:
    newer = fake_torch("2.13.0", _accelerator_getAllocatorSettings=lambda: "expandable_segments:True")
    assert allocator_settings(newer, {CUDA_VARIABLE: "max_split_size_mb:64"}) == "expandable_segments:True"


NEEDS_CUDA_BUILD = pytest.mark.skipif(torch.version.cuda is None, reason="needs a build of torch for CUDA, no device")


@NEEDS_CUDA_BUILD
@pytest.mark.parametrize(
    "variables",
    [{CUDA_VARIABLE: "max_split_size_mb:64"}, {PLAIN_VARIABLE: "max_split_size_mb:128"},
     {CUDA_VARIABLE: "max_split_size_mb:64", PLAIN_VARIABLE: "max_split_size_mb:128"}],
)  # fmt: skip
def test_the_environment_is_read_as_this_torch_reads_it(variables: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TAKEN], env=os.environ | variables, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == environment_settings(variables, version_of(torch))


@NEEDS_CUDA_BUILD
def test_a_snapshot_of_this_torch_has_nothing_that_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "memory.pickle"
    code = f"import torch; torch.cuda.memory._dump_snapshot({str(path)!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert read_snapshot(path).newer == ""
