"""long_steps: fires where a few long steps have much of the time at one line, not where all steps have it."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from efprof.artifacts.readings import LONG_STEPS_FILE, EvaluationRecord, LongStep, SampledStack
from efprof.audits.long_steps import long_steps
from efprof.commands.report import analyse
from efprof.facts.run.run import Run, open_run
from efprof.model import Examination, Finding, NotRecorded
from efprof.report.verdict import describe_verdict
from tests.support.builders import START_NS, make_steps, write_run

RUNS = Path(__file__).parents[1] / "runs"
SOURCE = """\
def main(model, save):
    for step in range(40):
        train(model, step)
        if step % 10 == 9:
            save(model)

def save(model):
    torch.save(model)
"""
CALL, WITHIN = "train.py:5:main", "train.py:8:save"


WRITING = "torch.serialization.save"


def stack(seconds: float, *lines: str, inside: str | None = WRITING, usual: float = 0.0) -> SampledStack:
    return SampledStack(lines or (CALL, WITHIN), inside, seconds, usual)


def run_of(folder: Path, *steps: list[SampledStack], memory_source: str = "C allocator") -> Run:
    """40 steps of 15.5 ms in 40 seconds of wall time, of which these, each tenth, are long."""
    run = write_run(
        folder,
        steps=make_steps(40),
        sources={"train.py": SOURCE},
        memory_source=memory_source,
        started=datetime.fromtimestamp(START_NS / 1e9, UTC).isoformat(),
        duration_s=41.0,
    )
    add_lines(run, LONG_STEPS_FILE, LongStep(step=5, started_ns=START_NS))
    for number, stacks in enumerate(steps):
        add_lines(run, LONG_STEPS_FILE, LongStep(step=number, started_ns=START_NS + 10**10 * number, stacks=stacks))
    return run


def add_lines(run: Run, name: str, record: msgspec.Struct) -> None:
    with (run.rank_folder / name).open("ab") as file:
        file.write(msgspec.json.encode(record) + b"\n")


def examine(folder: Path, *steps: list[SampledStack]) -> Examination:
    return long_steps(run_of(folder, *steps))


def only(examination: Examination) -> Finding:
    (finding,) = examination.findings
    return finding


def test_it_blames_the_line_that_long_steps_have_in_common_and_says_how_much_of_the_training_it_is(
    tmp_path: Path,
) -> None:
    examination = examine(tmp_path / "run", [stack(4.0)], [stack(6.0)])
    finding = only(examination)
    assert (str(finding.blame), finding.blame.text) == ("train.py:5", "save(model)")
    assert finding.message == "10.0 s, 26 % of the training time, went to 2 long steps at train.py:5."
    assert finding.fix.summary == "Write less often, or only what is new: `save(model)`."
    assert finding.why == "Writing files between updates; most of its time goes to train.py:8: `torch.save(model)`."
    assert finding.gain.step_ms == pytest.approx(10_000 / 40)
    assert examination.looked_at == "40 steps, 2 of them long"


def evaluated(folder: Path, seconds: float, *, is_rollout: bool = False) -> Run:
    run = run_of(folder, [stack(seconds, inside=None)], [stack(seconds, inside=None)])
    evaluation = EvaluationRecord(
        after_step=9,
        started_ns=START_NS + 10**9,
        total_us=7.5e6,
        is_rollout=is_rollout,
        num_batches=7,
        site=WITHIN,
        memory=[],
        peak_bytes=0,
        is_peak_exact=False,
    )
    add_lines(run, "evaluations.jsonl", evaluation)
    return run


def test_an_evaluation_that_is_known_is_told_with_it(tmp_path: Path) -> None:
    finding = only(long_steps(evaluated(tmp_path / "run", seconds=7.0)))
    assert finding.headline.startswith("Evaluation between updates")
    assert "an evaluation over a DataLoader began in 1 of the 2 steps" in str(finding.evidence)


def test_an_evaluation_that_takes_a_quarter_of_the_training_is_silent(tmp_path: Path) -> None:
    assert long_steps(evaluated(tmp_path / "run", seconds=5.0)).findings == ()


def test_a_rollout_that_took_as_long_is_what_the_training_learns_from(tmp_path: Path) -> None:
    assert long_steps(evaluated(tmp_path / "rollout", seconds=7.0, is_rollout=True)).findings == ()
    beside_it = only(long_steps(evaluated(tmp_path / "beside it", seconds=8.0, is_rollout=True)))
    assert beside_it.headline.startswith("Work between updates")


def test_what_a_profiler_of_the_program_puts_together_is_told_by_debug_mode(tmp_path: Path) -> None:
    profiles = [stack(9.0, inside="torch.autograd.profiler.profile.__exit__")]
    assert examine(tmp_path / "run", profiles, profiles).findings == ()


def test_a_line_that_usual_steps_have_as_well_is_silent(tmp_path: Path) -> None:
    assert examine(tmp_path / "run", [stack(5.0, usual=0.4)], [stack(5.0, usual=0.4)]).findings == ()


def test_what_happens_once_or_takes_little_or_waits_for_a_loader_is_silent(tmp_path: Path) -> None:
    assert examine(tmp_path / "once", [stack(20.0)]).findings == ()
    assert examine(tmp_path / "little", [stack(3.0)], [stack(3.0)]).findings == ()
    waits = SampledStack((), "multiprocessing.queues.Queue.get", 9.0, 0.0)
    assert examine(tmp_path / "loader", [waits], [waits]).findings == ()


def test_a_line_that_may_only_wait_for_a_device_is_silent_there(tmp_path: Path) -> None:
    waits = [stack(5.0, CALL, inside=None)]
    on_device = long_steps(run_of(tmp_path / "device", waits, waits, memory_source="the CUDA allocator"))
    assert on_device.findings == ()
    assert examine(tmp_path / "host", waits, waits).findings != ()


def test_it_is_not_applicable_where_nobody_looked(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="is missing"):
        long_steps(write_run(tmp_path / "old", steps=make_steps(40)))


def test_the_recorded_evaluation_leads_its_report_and_its_twin_is_silent() -> None:
    report = analyse(RUNS / "long_steps-sick")
    lines = describe_verdict(report)
    assert lines.blame is not None
    assert lines.blame.text.endswith("# fault")
    assert "long steps at tests/casebook/long_steps.py:49" in lines.verdict
    assert long_steps(open_run(RUNS / "long_steps-healthy")).findings == ()
