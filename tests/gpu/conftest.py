"""Settings of the tests on a device, and what becomes of their failures.

The files run in the order of their numbers: by their names, test_10 would come before test_1.
"""

import os
from pathlib import Path

import pytest

from tests.gpu.cuda_runs import results_folder

FOLDER = Path(__file__).parent

# Processes that compile in the background outlive the test that started them.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [place for place, item in enumerate(items) if item.path.parent == FOLDER]
    in_order = sorted((items[place] for place in ours), key=lambda item: int(item.path.name.split("_")[1]))
    for place, item in zip(ours, in_order, strict=True):
        items[place] = item


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Failures go to the results at once: a run that is cut off tells of them, too."""
    if report.failed and report.nodeid.startswith("tests/gpu/") and "PYTEST_XDIST_WORKER" not in os.environ:
        with (results_folder() / "failures.txt").open("a") as file:
            file.write(f"{report.nodeid}, {report.when}\n{report.longreprtext}\n\n")
