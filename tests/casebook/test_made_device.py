"""The cases that need a device, recorded on a simulated one that computes shapes alone: every audit is made of them."""

import contextlib
import importlib
from pathlib import Path

import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook

from efprof.commands.report import analyse
from efprof.recorder.collectors import device_data
from efprof.recorder.session.options import DEFAULT_MEMORY_STEPS, parse_steps
from tests.casebook._cases import Case, all_cases
from tests.casebook._scores import findings
from tests.recorder.recording import record_here
from tests.simulated_cuda.cuda import SimulatedCuda
from tests.support.builders import GPU

CASES = {case.name: case for case in all_cases() if case.device is not None}
NUM_STEPS = {"allocation_retries": 24, "fragmented_checkpoints": 18, "unused_headroom": 57}
"""As many as the audit asks for, and as show the fault; else these:"""
FEW_STEPS = 10
BY_THE_CLOCK = ("input_stall", "step_slowdown")
"""Audits that say nothing here, where a step takes as long as its shapes do."""


class EnoughSteps(Exception):
    """Ends a training that would go on."""


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test may have."""
    monkeypatch.setattr(device_data, "_has_compiled", lambda: False)


def record(case: Case, folder: Path, *, is_healthy: bool) -> None:
    """Its first steps, with the allocator's history of those that the case asks for."""
    num_left = NUM_STEPS.get(case.name, FEW_STEPS)
    options = dict(zip(case.options[::2], case.options[1::2], strict=True))
    memory_steps = parse_steps("--memory-steps", options.get("--memory-steps", "default"), DEFAULT_MEMORY_STEPS)

    def count(*_: object) -> None:
        nonlocal num_left
        num_left -= 1
        if not num_left:
            raise EnoughSteps

    def train() -> None:
        with contextlib.suppress(EnoughSteps):
            importlib.import_module(f"tests.casebook.{case.name}").train(is_healthy)

    hook = register_optimizer_step_post_hook(count)
    try:
        with SimulatedCuda(total_bytes=GPU.total_bytes, has_values=False).in_place():
            record_here(folder, train, memory_steps=memory_steps, holders=False)
    finally:
        hook.remove()


@pytest.mark.parametrize("is_healthy", [False, True], ids=["sick", "healthy"])
@pytest.mark.parametrize("name", CASES)
def test_the_fault_is_found_on_the_marked_line_and_in_the_healthy_twin_nothing(
    name: str, is_healthy: bool, tmp_path: Path
) -> None:
    """No audit may break, either."""
    case = CASES[name]
    record(case, tmp_path / "run", is_healthy=is_healthy)
    report = analyse(tmp_path / "run", case.budget_bytes)
    assert [result.audit_id for result in report.audits if result.status == "errored"] == []
    found = [(audit, str(finding.blame)) for audit, finding in findings(report) if audit not in BY_THE_CLOCK]
    planted = [(audit, f"tests/casebook/{name}.py:{line}") for audit, line in case.faults]
    assert found == ([] if is_healthy else planted)
