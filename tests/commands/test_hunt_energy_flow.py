"""energy_flow without its guard: a NaN of a bad batch, of half precision and of a clip taken out are told apart."""

import sys
from pathlib import Path

import pytest

from efprof.commands.hunt import hunt_in
from efprof.commands.report import analyse
from efprof.report.verdict import rank_findings
from tests.recorder.recording import line_of, record_command

PROGRAM = Path(__file__).parents[1] / "recorder" / "programs" / "energy_flow_unguarded.py"


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "file", "why", "advice"),
    [
        ("batch", "core/embedding_mapper.py", "It is given float32 [8, 768], which is", "Look at the batch"),
        ("half", "energy_flow_unguarded.py", "`mm` makes Inf: it is given float16 [4, 16], ", "float16 ends at 65,504"),
        ("clip", "energy_flow_unguarded.py", "Gradients exploded, that of `", "Lower the limit at "),
    ],
)  # fmt: skip
def test_three_faults_of_energy_flow_are_told_apart(
    fault: str, file: str, why: str, advice: str, tmp_path: Path
) -> None:
    recorded = record_command(tmp_path / "home", [sys.executable, str(PROGRAM), fault])
    assert hunt_in(recorded.folder, max_minutes=20).verdict == "born"
    (item,) = [one for one in rank_findings(analyse(recorded.folder)) if one.audit_id == "nonfinite_loss"]
    finding = item.finding
    assert finding.blame.file.endswith(file)
    assert finding.why.startswith(why)
    assert finding.fix.summary.startswith(advice)
    if fault == "half":
        assert finding.blame.line == line_of(PROGRAM, "born")
