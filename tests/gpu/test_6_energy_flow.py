"""energy_flow on a CUDA device: the table of `make bench-trainer`, and the compiled flow step."""

import subprocess
import sys

import pytest
import torch

from energy_flow.config_parsing import load_config
from energy_flow.core.flow_processor import FlowProcessor
from tests.gpu.cuda_runs import ROOT, needs_cuda, results_folder, synchronisation_is_an_error

pytestmark = [*needs_cuda, pytest.mark.timeout(900)]


def _flows(*assignments: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The output surface, and the gradient of the input surface."""
    config = load_config("cpu_demo", assignments=["runtime.device=cuda", *assignments])
    torch.manual_seed(0)
    processor = FlowProcessor(config).cuda()
    surface = torch.randn(64, 16, 16).cuda().requires_grad_()
    processor(surface).surface.square().sum().backward()  # whatever is made once is made here
    surface.grad = None
    with synchronisation_is_an_error():
        landed = processor(surface).surface
        landed.square().sum().backward()
    assert surface.grad is not None
    return landed.detach(), surface.grad


@pytest.mark.parametrize("assignments", [["flow.checkpoint_steps=3"], ["runtime.compile=true"]])
def test_flows_give_the_same_numbers_with_a_setting_and_without_and_never_wait(assignments: list[str]) -> None:
    for value, expected in zip(_flows(*assignments), _flows("flow.compaction_lot=0"), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-2, atol=1e-3)


def test_the_trainer_table_has_both_configurations_and_holds_its_requirements() -> None:
    table = results_folder() / "trainer.md"
    command = [sys.executable, "-m", "benchmarks.trainer", "--device", "cuda", "--write", str(table)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    text = table.read_text(encoding="utf-8")
    assert all(f"\n| {name} | " in text for name in ("experiment", "large")), done.stderr
    assert done.returncode == 0, f"a requirement is not held: {text}"
