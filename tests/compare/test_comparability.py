"""What must be equal, and what a branch may change."""

from typing import Any

import pytest

from efprof.compare.comparison import find_differences
from tests.compare.reports import RUN, make_report


def replaced(name: str, value: str) -> tuple[tuple[str, str], ...]:
    """RUN's environment with one entry set to another value."""
    return tuple({**dict(RUN.environment), name: value}.items())


def test_what_a_branch_or_checkout_or_its_own_code_or_an_early_end_changes_may_differ() -> None:
    head = make_report(branch="feature", commit="abcd", is_dirty=True, name="other", started="2027-01-01")
    assert find_differences(make_report(), head) == ()
    head = make_report(environment=replaced("matmul precision", "high"))
    assert find_differences(make_report(), head) == ()
    base = make_report(command=("/usr/bin/python", "/home/user/project/train.py"))
    head = make_report(
        command=("/home/user/.venv/bin/python", "/tmp/feature/train.py"),
        environment=replaced("working folder", "/tmp/feature"),
    )
    assert find_differences(base, head) == ()
    head = make_report(num_steps=0, num_ranks=0, devices=(), environment=(), memory_source="", ended="raised")
    assert find_differences(make_report(), head) == ()


@pytest.mark.parametrize(
    ("fields", "difference"),
    [
        ({"devices": ("NVIDIA A100",)}, "devices: NVIDIA H200 in base, NVIDIA A100 in head"),
        ({"devices": ()}, "devices: NVIDIA H200 in base, none in head"),
        ({"num_ranks": 4}, "ranks: 1 in base, 4 in head"),
        ({"environment": replaced("torch", "2.6.0")}, "torch: 2.13.0 in base, 2.6.0 in head"),
        (
            {"environment": replaced("cpu", "AMD EPYC, 4 cores")},
            "cpu: AMD EPYC, 8 cores in base, AMD EPYC, 4 cores in head",
        ),
        ({"environment": replaced("OMP_NUM_THREADS", "1")}, "OMP_NUM_THREADS: none in base, 1 in head"),
        ({"configuration": (("batch_size", "32"),)}, "configuration batch_size: 64 in base, 32 in head"),
        (
            {"command": ("python", "train.py", "--epochs", "2")},
            "command: python train.py --epochs 1 in base, python train.py --epochs 2 in head",
        ),
        ({"memory_source": "the C allocator"}, "memory read from: the CUDA allocator in base, the C allocator in head"),
    ],
)
def test_names_what_differs(fields: dict[str, Any], difference: str) -> None:
    assert find_differences(make_report(), make_report(**fields)) == (difference,)
