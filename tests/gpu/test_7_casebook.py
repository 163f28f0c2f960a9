"""The casebook's cases that need a device: each fault found on its line by a real recording, each twin silent."""

from pathlib import Path

import pytest

from tests.casebook.__main__ import record, record_fixed, score
from tests.casebook._cases import all_cases
from tests.gpu.cuda_runs import needs_cuda

pytestmark = needs_cuda

CASES = {case.name: case for case in all_cases() if case.device is not None}


@pytest.mark.parametrize("name", CASES)
def test_the_fault_is_found_on_its_line_and_its_healthy_twin_is_silent(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    sick, healthy = record(case, tmp_path, "sick"), record(case, tmp_path, "healthy")
    told = score(case, sick, healthy, record_fixed(case, tmp_path, sick))
    assert told.is_right, (told.found, told.on_line, told.extra, told.false_alarms, told.is_broken_by_fix)
