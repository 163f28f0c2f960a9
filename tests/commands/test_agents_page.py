"""docs/agents.md: its commands run as they stand, and the keys that it names are there."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from efprof.report.brief import MAX_BYTES
from tests.support.waiting import MAX_WAIT_S

PAGE = Path(__file__).parents[2] / "docs/agents.md"
MAX_LINES = 60
PROGRAM = """
import torch

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for _ in range(40):
    optimizer.zero_grad()
    loss = model(torch.randn(32, 64)).square().mean()
    loss.backward()
    optimizer.step()
    kept.append(loss)
"""


@pytest.mark.long
def test_every_command_runs_and_the_answer_has_the_keys_that_the_page_names(tmp_path: Path) -> None:
    text = PAGE.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    (tmp_path / "train.py").write_text(PROGRAM)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    printed = {}
    for command in re.findall(r"^    (efprof .*)$", text, re.MULTILINE):
        done = subprocess.run(
            shlex.split(command), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=10 * MAX_WAIT_S
        )
        assert done.returncode in (0, 1), done.stderr
        printed[command] = done.stdout
    answer = json.loads(printed["efprof report before --brief --json"])
    assert len(printed["efprof report before --brief --json"]) <= MAX_BYTES + 1
    assert set(re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", text, re.MULTILINE)) == {
        "`verdict`, `why`, `next`",
        "`findings`",
        "`not_looked_at`",
        "`commands`",
    }
    assert {"verdict", "why", "next", "findings", "not_looked_at", "commands"} <= answer.keys()
    (leak,) = answer["findings"]
    assert {"id", "severity", "line", "sentence", "fix", "gain"} <= leak.keys()
    assert (leak["id"], leak["line"]) == ("retained_graph", "train.py:12")
    assert leak["line"] in printed["efprof record --name before --report -- python train.py"]
    compared = json.loads(printed["efprof compare before after --json"])
    assert {one["change"] for one in compared["findings"]} <= {"added", "gone", "kept", "unchecked"}
