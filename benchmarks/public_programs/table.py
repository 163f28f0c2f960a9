"""The table of programs: whether each ended as bare, what recording cost, and what the report said of it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.public_programs.judgements import Judgement
from benchmarks.public_programs.listed import Program
from benchmarks.public_programs.outputs import difference, normalised, without_recorder_lines
from benchmarks.public_programs.running import Ended, Recorded, Reported

MAX_RATIO = 1.1
"""Of CPU time, beside the allowance: windows and counts in a program of half a minute take more than 1 %."""
ALLOWANCE_S = 3.0
"""What recording may spend at the start (docs/recording.md)."""
MAX_SAID = 300
"""Characters of an error."""
NOT_JUDGED = ("not judged",)
"""What the table says in the place of an answer."""

HEAD = (
    "| program | output | exit code | CPU bare | CPU recorded | at most | steps | micro-batches | verdict | true? |",
    f"|{' --- |' * 10}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A program that ran: each round bare and recorded, and what the last recording says."""

    program: Program
    bare: tuple[Ended, ...]
    recorded: tuple[Ended, ...]
    recording: Recorded | str
    """Or why it cannot be read."""

    @property
    def bare_cpu_s(self) -> float:
        return median(ended.cpu_s for ended in self.bare)

    @property
    def recorded_cpu_s(self) -> float:
        return median(ended.cpu_s for ended in self.recorded)

    @property
    def allowed_cpu_s(self) -> float:
        return MAX_RATIO * self.bare_cpu_s + ALLOWANCE_S

    @property
    def is_cheap(self) -> bool:
        return self.recorded_cpu_s <= self.allowed_cpu_s

    @property
    def ends_alike(self) -> bool:
        return not differences(self) and {ended.exit_code for ended in (*self.bare, *self.recorded)} == {0}

    @property
    def is_counted(self) -> bool:
        """True if the recording has every step and micro-batch, and none more."""
        if isinstance(self.recording, str):
            return False
        counted = (self.recording.num_steps, self.recording.num_micro_batches)
        return counted == (self.program.num_steps, self.program.num_micro_batches)


def missing_package(ended: Ended) -> str | None:
    """The program's own complaint where a package that it imports is missing."""
    found = re.findall(r"^(?:ModuleNotFoundError|ImportError): .*$", ended.errors, re.MULTILINE)
    return found[-1][:MAX_SAID] if ended.exit_code and found else None


def differences(measured: Measured) -> list[str]:
    """How runs differ from the first bare one, other bare runs among them."""
    program, first = measured.program, measured.bare[0]
    found = []
    others = [("bare", ended) for ended in measured.bare[1:]] + [("recorded", ended) for ended in measured.recorded]
    for side, ended in others:
        if ended.exit_code != first.exit_code:
            found.append(f"{side}: exit code {ended.exit_code}, not {first.exit_code}")
        added = without_recorder_lines if side == "recorded" else list
        for stream, of_first, of_other in (
            ("standard output", first.output, _lines(program, ended.output)),
            ("standard error", first.errors, added(_lines(program, ended.errors))),
        ):
            changed = difference(_lines(program, of_first), of_other)
            if changed is not None:
                found.append(f"{side}, {stream}:\n{changed}")
    return list(dict.fromkeys(found))


def row(measured: Measured, judgement: Judgement | None) -> str:
    program, recording = measured.program, measured.recording
    codes = sorted({ended.exit_code for ended in measured.recorded})
    cells = [
        program.name,
        "differs" if differences(measured) else "same",
        f"{measured.bare[0].exit_code}" + ("" if codes == [measured.bare[0].exit_code] else f" -> {codes}"),
        f"{measured.bare_cpu_s:.1f} s",
        f"{measured.recorded_cpu_s:.1f} s",
        f"{measured.allowed_cpu_s:.1f} s" + ("" if measured.is_cheap else ", **not held**"),
    ]
    if isinstance(recording, str):
        return f"| {' | '.join([*cells, '-', '-', recording, *NOT_JUDGED])} |"
    cells += [
        _of(recording.num_steps, program.num_steps),
        _of(recording.num_micro_batches, program.num_micro_batches),
        recording.report.verdict.verdict,
        truth(recording.report, judgement)[0],
    ]
    return f"| {' | '.join(cells)} |"


def details(measured: Measured, judgement: Judgement | None) -> list[str]:
    """What stands below the table of one program: the command, the three lines, whether they are true, what differs."""
    program, recording = measured.program, measured.recording
    lines = ["", f"## {program.name}", "", f"{program.repository}: `python {' '.join(program.command)}`", ""]
    if isinstance(recording, Recorded):
        verdict = recording.report.verdict
        lines += [f"- Verdict: {verdict.verdict}", f"- Why: {verdict.why}", f"- Next: {verdict.next}"]
        lines += [f"- Warning: {warning}" for warning in recording.report.warnings]
        lines += [f"- Found: `{found}`" for found in recording.report.found]
        lines.append(f"- True? {' '.join(truth(recording.report, judgement))}")
    for side, runs in (("bare", measured.bare), ("recorded", measured.recorded)):
        lines.append(f"- CPU {side}: {', '.join(f'{ended.cpu_s:.1f} s' for ended in runs)}")
    for changed in differences(measured):
        lines += ["", "Differs:", "", *(f"    {line}" for line in changed.splitlines())]
    return lines


def truth(report: Reported, judgement: Judgement | None) -> tuple[str, ...]:
    """Whether what the report says is true, and why; only where the verdict is the one that was judged."""
    if judgement is None or judgement.found != report.found:
        return NOT_JUDGED
    if masked(judgement.verdict) != masked(report.verdict.verdict):
        return NOT_JUDGED
    return (judgement.answer, f"{judgement.reason} (judged on {judgement.on})")


def masked(sentence: str) -> str:
    """The sentence without its figures, which differ from run to run."""
    return re.sub(r"\d[\d.,]*( (ms|us|s|KiB|MiB|GiB|%)\b|%)?", "#", sentence)


def summary(measured: Sequence[Measured], not_run: Mapping[str, str], judgements: Mapping[str, Judgement]) -> list[str]:
    alike = [each.program.name for each in measured if each.ends_alike]
    held = [each.program.name for each in measured if each.ends_alike and each.is_cheap]
    miscounted = [each.program.name for each in measured if not each.is_counted]
    not_judged = [each.program.name for each in measured if not _is_judged(each, judgements.get(each.program.name))]
    lines = [
        "",
        f"Of {len(measured) + len(not_run)} programs {len(alike)} end as bare, {len(held)} of them within the limit.",
        f"Steps or micro-batches are wrong in {_named(miscounted)}. Reports that are not judged: {_named(not_judged)}.",
    ]
    return lines + [f"Not run: {name}: {reason}" for name, reason in not_run.items()]


def _is_judged(measured: Measured, judgement: Judgement | None) -> bool:
    return not isinstance(measured.recording, str) and truth(measured.recording.report, judgement) != NOT_JUDGED


def _named(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names)})" if names else "0"


def _lines(program: Program, text: str) -> list[str]:
    return normalised(text, program.varies)


def _of(recorded: int, expected: int) -> str:
    return f"{recorded}" if recorded == expected else f"{recorded} of {expected}"
