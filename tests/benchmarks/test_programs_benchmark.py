"""The benchmark of public programs tells what differs between a bare run and a recorded one, and nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.public_programs import __main__ as public_programs
from benchmarks.public_programs.__main__ import main
from benchmarks.public_programs.judgements import Judgement
from benchmarks.public_programs.listed import PROGRAMS, Edit, Program
from benchmarks.public_programs.outputs import difference, normalised, without_recorder_lines
from benchmarks.public_programs.preparing import NotRunnable, prepare
from benchmarks.public_programs.running import Blame, Ended, Recorded, Reported, ReportedAudit, ReportedFinding, Verdict
from benchmarks.public_programs.table import Measured, differences, missing_package, row, summary, truth

PROGRAM = Program(
    name="made",
    repository="some/where",
    checkout="made",
    directory=".",
    command=("train.py",),
    num_steps=3,
    num_micro_batches=6,
    edits=(Edit(file="train.py", old="forever", new="briefly"),),
)


def ended(*, output: str = "loss 1.5\n", errors: str = "", exit_code: int = 0, cpu_s: float = 20.0) -> Ended:
    return Ended(exit_code=exit_code, cpu_s=cpu_s, output=output, errors=errors)


def reported(verdict: str = "20 % of the step waits for data.", line: int = 7) -> Reported:
    blame = ReportedFinding(Blame("train.py", line))
    return Reported(Verdict(verdict, "", ""), [ReportedAudit("input_stall", [blame])], [])


def measured(bare: Ended, recorded: Ended, *, num_steps: int = 3, num_micro_batches: int = 6) -> Measured:
    recording = Recorded(num_steps=num_steps, num_micro_batches=num_micro_batches, report=reported())
    return Measured(program=PROGRAM, bare=(bare,), recorded=(recorded,), recording=recording)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("step 3 | step time 12.51ms", "step 3 | step time 9.2ms"),
        ("Epoch 1:  0%|  | 0/9\rEpoch 1: 9/9 [00:01<00:00, 8.1it/s]", "Epoch 1: 9/9 [00:02<00:00, 4.0it/s]"),
        ("time: 0.0031s", "time: 1.2s"),
        ("| time:  9.91s | loss 2", "| time: 10.02s | loss 2"),
        ("[W1128 10:10:27.632411919 a.cpp:5] odd", "[W1129 11:10:27.1 a.cpp:5] odd"),
        ("<Net at 0x7f00deadbeef>", "<Net at 0x7f00deadbee0>"),
        ("2026-11-28 10:10:27,632 INFO", "2026-11-29 10:10:27,001 INFO"),
    ],
)
def test_lines_that_differ_in_times_alone_are_equal(first: str, second: str) -> None:
    assert difference(normalised(first), normalised(second)) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("loss 1.5", "loss 1.6"),
        ("step 3 | loss 2.0", "step 4 | loss 2.0"),
        ("a\nb", "a"),
        ("accuracy 12%", "accuracy 13%"),
    ],
)
def test_lines_that_differ_in_figures_are_told(first: str, second: str) -> None:
    assert difference(normalised(first), normalised(second)) is not None


def test_what_a_program_says_to_vary_is_left_out() -> None:
    assert normalised("SPS: 512", (r"SPS: \d+",)) == normalised("SPS: 498", (r"SPS: \d+",))


def test_the_recorders_lines_are_no_difference() -> None:
    lines = normalised("efprof: recorded 2026; read it\nWarning: slow")
    assert without_recorder_lines(lines) == ["Warning: slow"]


def test_a_line_of_a_block_from_before_the_profiler_is_a_difference() -> None:
    line = "[W1128 10:10:27.1 a.cpp:5] Memory block of unknown size was allocated before the profiling started\n"
    both = measured(ended(), ended(errors=line))
    assert len(differences(both)) == 1


def test_bare_errors_keep_lines_that_only_the_recorder_may_add() -> None:
    both = measured(ended(errors="efprof: odd\n"), ended(errors="efprof: odd\n"))
    assert len(differences(both)) == 1


def test_another_exit_code_is_a_difference() -> None:
    killed = measured(ended(), ended(exit_code=-9))
    assert differences(killed) == ["recorded: exit code -9, not 0"]
    assert not killed.ends_alike


@pytest.mark.parametrize(("cpu_s", "is_cheap"), [(25.0, True), (25.1, False)])
def test_a_tenth_and_the_allowance_may_be_spent(cpu_s: float, is_cheap: bool) -> None:
    assert measured(ended(cpu_s=20.0), ended(cpu_s=cpu_s)).is_cheap == is_cheap


def test_a_row_shows_a_wrong_count_beside_the_right_one() -> None:
    shown = row(measured(ended(), ended(cpu_s=21.0), num_micro_batches=5), None)
    assert shown == (
        "| made | same | 0 | 20.0 s | 21.0 s | 25.0 s | 3 | 5 of 6 | 20 % of the step waits for data. | not judged |"
    )


@pytest.mark.parametrize(
    ("num_steps", "num_micro_batches", "exit_code"), [(3, 6, 0), (2, 6, 1), (4, 6, 1), (3, 5, 1), (3, 7, 1)]
)
def test_a_wrong_count_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_steps: int, num_micro_batches: int, exit_code: int
) -> None:
    ran = measured(ended(), ended(), num_steps=num_steps, num_micro_batches=num_micro_batches)
    monkeypatch.setattr(public_programs, "measure", lambda *_: ran)
    assert CliRunner().invoke(main, [str(tmp_path), "--only", "nanoGPT"]).exit_code == exit_code


def test_a_recording_that_cannot_be_read_has_no_right_count_and_no_judgement() -> None:
    lost = replace(measured(ended(), ended()), recording="no run of made was recorded")
    assert not lost.is_counted
    assert row(lost, judged()).endswith("| no run of made was recorded | not judged |")
    assert "Reports that are not judged: 1 (made)." in summary([lost], {}, {"made": judged()})[2]


def test_the_summary_names_what_was_miscounted_and_what_was_not_judged() -> None:
    short = measured(ended(), ended(), num_steps=2)
    assert summary([short], {}, {})[1:] == [
        "Of 1 programs 1 end as bare, 1 of them within the limit.",
        "Steps or micro-batches are wrong in 1 (made). Reports that are not judged: 1 (made).",
    ]
    right = summary([measured(ended(), ended())], {}, {"made": judged()})[2]
    assert right == "Steps or micro-batches are wrong in 0. Reports that are not judged: 0."


def judged() -> Judgement:
    return Judgement(
        on="2026-11-28",
        verdict="31 % of the step waits for data.",
        found=("input_stall train.py:7",),
        answer="true",
        reason="The loader has no workers.",
    )


def test_a_judgement_holds_whatever_the_figures() -> None:
    assert truth(reported(), judged()) == ("true", "The loader has no workers. (judged on 2026-11-28)")


@pytest.mark.parametrize("report", [reported("No fault was found."), reported(line=8)])
def test_another_verdict_is_not_judged(report: Reported) -> None:
    assert truth(report, judged()) == ("not judged",)


def test_a_missing_package_is_named() -> None:
    errors = "Traceback ...\nModuleNotFoundError: No module named 'gymnasium'\n"
    assert missing_package(ended(errors=errors, exit_code=1)) == "ModuleNotFoundError: No module named 'gymnasium'"
    assert missing_package(ended(errors=errors, exit_code=0)) is None


def test_a_checkout_is_edited_once(tmp_path: Path) -> None:
    script = tmp_path / "made" / "train.py"
    script.parent.mkdir()
    script.write_text("train(forever)")
    prepare(PROGRAM, tmp_path)
    prepare(PROGRAM, tmp_path)
    assert script.read_text() == "train(briefly)"


def test_a_changed_checkout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "train.py").write_text("train(always)")
    with pytest.raises(NotRunnable, match="no longer has 'forever'"):
        prepare(PROGRAM, tmp_path)


def test_without_checkouts_the_reason_is_printed(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, [str(tmp_path), "--only", "nanoGPT"])
    assert done.exit_code == 1
    assert "check out karpathy/nanoGPT as" in done.output


def test_the_list_names_every_program() -> None:
    done = CliRunner().invoke(main, ["--list"])
    assert all(f"| {program.name} | {program.repository} |" in done.output for program in PROGRAMS)
