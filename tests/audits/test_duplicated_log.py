"""duplicated_log: fires on the line that adds the later handler; silent where each record is written once."""

from pathlib import Path

import pytest

from efprof.artifacts.events import DuplicatedLog
from efprof.audits.duplicated_log import duplicated_log
from efprof.facts.run.run import Run, open_run
from efprof.model import NotRecorded
from tests.recorder.recording import line_of, record_script
from tests.support.builders import START_NS, make_steps, write_run

TRAIN = "def setup():\n    logger.addHandler(StreamHandler())\n\ndef train():\n    logger.info('step')\n"
FIRST, SECOND, LOGS = "main.py:9:main", "train.py:2:setup", "train.py:5:train"

SCRIPT = """\
import logging
import torch

def get_logger():
    logger = logging.getLogger("train")
    logger.addHandler(logging.StreamHandler())  # again
    return logger

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    get_logger().warning("step %d", step)
"""


def run_of(folder: Path, *, doubled: int, records: int = 100, added: tuple[str, ...] = (SECOND, FIRST)) -> Run:
    event = DuplicatedLog(
        at_ns=START_NS, step=9, site=LOGS, num_records=records, num_doubled=doubled, added=[*added]
    )  # fmt: skip
    return write_run(folder / "run", steps=make_steps(40), events=[event], sources={"train.py": TRAIN})


@pytest.mark.long
def test_in_a_recorded_program_it_blames_the_line_that_adds_the_handler_again(tmp_path: Path) -> None:
    recorded = record_script(tmp_path / "home", SCRIPT)
    (finding,) = duplicated_log(open_run(recorded.folder)).findings
    assert finding.blame.line == line_of(tmp_path / "train.py", "again")
    assert finding.message.startswith("7 of 8 log records were written to one stream")


def test_it_names_the_lines_that_add_the_handlers_and_the_one_that_logs(tmp_path: Path) -> None:
    (finding,) = duplicated_log(run_of(tmp_path, doubled=40)).findings
    assert (str(finding.blame), finding.severity) == ("train.py:2", "low")
    assert "main.py:9" in finding.why
    assert "train.py:5" in finding.why


def test_where_no_line_was_seen_to_add_one_the_line_that_logs_is_blamed(tmp_path: Path) -> None:
    (finding,) = duplicated_log(run_of(tmp_path, doubled=40, added=())).findings
    assert str(finding.blame) == "train.py:5"


def test_more_than_half_of_the_records_are_medium(tmp_path: Path) -> None:
    for records, severity in ((60, "medium"), (19, "low")):
        (finding,) = duplicated_log(run_of(tmp_path / severity, doubled=min(40, records), records=records)).findings
        assert finding.severity == severity


def test_it_is_silent_of_a_few_at_the_start(tmp_path: Path) -> None:
    assert duplicated_log(run_of(tmp_path, doubled=2)).findings == ()


def test_a_run_that_logs_nothing_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="logging"):
        duplicated_log(write_run(tmp_path / "run", steps=make_steps(40)))
