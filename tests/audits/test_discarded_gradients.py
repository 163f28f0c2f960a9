"""discarded_gradients: fires on the call that clears gradients with each pass, with how many passes are lost."""

from pathlib import Path

import pytest

from efprof.artifacts.events import DiscardedPasses
from efprof.audits.discarded_gradients import discarded_gradients
from efprof.facts.run.run import Run, open_run
from efprof.model import Finding, NotRecorded
from tests.recorder.programs.discarding_programs import clear_with_each
from tests.recorder.recording import record_here
from tests.support.builders import START_NS, make_steps, write_run

TRAIN = """\
def train(model, optimizer):
    optimizer.zero_grad()
    for number, batch in enumerate(loader):
        optimizer.zero_grad()  # with each
        model(batch).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
"""
ELSEWHERE = """\
class Trainer:
    def begin(self):
        self.optimizer.zero_grad()

    def train(self):
        for batch in self.loader:
            self.begin()
            self.model(batch).backward()
"""
CONDITIONAL = TRAIN.replace("optimizer.zero_grad()  # with each", "if is_clean: optimizer.zero_grad()")
TWO_CONDITIONS = """\
def train(model, optimizer):
    for number, batch in enumerate(loader):
        if number % 2: optimizer.zero_grad()
        if is_clean: model.zero_grad()
        model(batch).backward()
"""
BY_HAND = """\
def train(model, optimizer):
    for number, batch in enumerate(loader):
        for parameter in model.parameters():
            parameter.grad = None
        model(batch).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
"""


def passes(num_updates: int = 10, num_discarding: int = 10, **fields: object) -> DiscardedPasses:
    counts = {"num_passes": 4 * num_updates, "num_discarded": 3 * num_discarding, "step_site": "train.py:7:train"}
    defaults = {"at_ns": START_NS, "step": 5, "site": "train.py:5:train", **counts}
    return DiscardedPasses(
        num_updates=num_updates,
        num_discarding=num_discarding,
        **{**defaults, **fields},  # type: ignore[arg-type]
    )


def run_of(folder: Path, *events: DiscardedPasses, text: str = TRAIN) -> Run:
    return write_run(folder / "run", steps=make_steps(40), events=events, sources={"train.py": text})


def finding_of(run: Run) -> Finding:
    (finding,) = discarded_gradients(run).findings
    return finding


def test_it_blames_the_call_that_clears_with_each_pass(tmp_path: Path) -> None:
    finding = finding_of(run_of(tmp_path, passes(5, 5), passes()))
    assert (str(finding.blame), finding.severity) == ("train.py:4", "high")
    assert finding.message.startswith("30 of 40 backward passes seen at train.py:5 were thrown away")
    assert len(finding.message.split()) <= 25
    assert finding.fix.summary == "Move `optimizer.zero_grad()` below train.py:7, to run once for each update."


def test_in_a_recorded_program_it_is_the_line_that_clears(tmp_path: Path) -> None:
    record_here(tmp_path / "run", clear_with_each)
    blame = finding_of(open_run(tmp_path / "run")).blame
    assert (blame.text, blame.function) == ("optimizer.zero_grad()  # clear", "clear_with_each")


def test_the_only_call_of_the_program_is_blamed_wherever_it_lies(tmp_path: Path) -> None:
    event = passes(site="train.py:8:Trainer.train", step_site=None)
    finding = finding_of(run_of(tmp_path, event, text=ELSEWHERE))
    assert (str(finding.blame), finding.blame.function) == ("train.py:3", "Trainer.begin")


def test_a_call_under_a_condition_that_is_not_the_step_s_is_blamed_as_well(tmp_path: Path) -> None:
    assert str(finding_of(run_of(tmp_path, passes(), text=CONDITIONAL)).blame) == "train.py:4"


@pytest.mark.parametrize("text", [BY_HAND, TWO_CONDITIONS, ""], ids=["by hand", "either of two", "no text"])
def test_the_pass_is_blamed_where_no_call_or_more_than_one_may_clear(text: str, tmp_path: Path) -> None:
    finding = finding_of(run_of(tmp_path, passes(), text=text))
    assert str(finding.blame) == "train.py:5"
    assert finding.why.endswith("they are gone.")


@pytest.mark.parametrize(
    ("fields", "severity"),
    [({}, "high"), ({"num_discarded": 19}, "medium"), ({"num_discarded": 20}, "high"), ({"num_rewritten": 5}, "low")],
)
def test_the_severity_is_by_the_share_of_the_passes(fields: dict[str, int], severity: str, tmp_path: Path) -> None:
    assert finding_of(run_of(tmp_path, passes(**fields))).severity == severity


@pytest.mark.parametrize("counts", [(4, 4), (10, 7), (10, 0)], ids=["few updates", "now and then", "never"])
def test_it_is_silent_unless_passes_are_lost_before_most_of_five_updates(
    counts: tuple[int, int], tmp_path: Path
) -> None:
    assert discarded_gradients(run_of(tmp_path, passes(*counts))).findings == ()


def test_a_run_in_which_no_pass_and_update_were_seen_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match=r"events\.jsonl"):
        discarded_gradients(run_of(tmp_path))
