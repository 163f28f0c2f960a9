"""A training on a device that turns to NaN within backward: the command runs again, and its line is found."""

from pathlib import Path

from efprof.commands.hunt import hunt_in
from tests.gpu.cuda_runs import needs_cuda, record_text

pytestmark = needs_cuda

TRAIN = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 64)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(60):
    inputs = torch.randn(256, 64, device="cuda")
    weights = torch.ones(256, 1, device="cuda")
    if step == 40:
        weights[7] = 0.0
    distance = ((model(inputs) - inputs) * weights).square().sum(1)
    loss = distance.sqrt().mean()  # born
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_the_line_is_found_after_losses_that_are_nearly_equal(tmp_path: Path) -> None:
    hunt = hunt_in(record_text(tmp_path, TRAIN).folder, max_minutes=10)
    assert (hunt.verdict, hunt.why) == ("born", "")
    assert hunt.num_equal >= 39
    line = next(number for number, text in enumerate(TRAIN.splitlines(), 1) if text.endswith("# born"))
    assert hunt.origin is not None
    assert int((hunt.origin.site or "::").split(":")[1]) == line
