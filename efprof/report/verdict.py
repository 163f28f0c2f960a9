"""What a person reads first: which run, three lines of verdict, the findings by rank, and how many checks said what."""

import math
import re
import shlex
from collections import Counter, defaultdict
from typing import Literal, get_args

from efprof.model import (
    ENDED_WELL,
    NEEDS,
    AuditResult,
    Category,
    EfprofError,
    Finding,
    Narrative,
    Numbers,
    Report,
    RunIdentity,
    Severity,
    SourceLine,
    frozen_dataclass,
    nearest_to,
)
from efprof.report.proof_form import newest_proofs, proof_sentence
from efprof.report.wording import (
    anchor_of,
    device_phrase,
    gain_phrase,
    one_line,
    sentence,
    shorten,
    show,
    source_phrase,
)
from efprof.units import format_count, format_interval, format_share, in_brackets

MAX_UNREAD_SHARE = 0.1
"""Of the run: memory that was last read before that is told of up to that step only."""
MIN_SHOWN = 0.005
"""Of the run's time: a smaller part is not worth a word."""
FOREIGN = "unknown"
"""How a run ended of which there is only a file that something else wrote."""
BELOW = "; what was recorded until then is below."
ENDINGS: dict[str, tuple[str, str]] = {
    "raised": ("The run stopped with an error", "Read what the program itself said last"),
    "out_of_memory": ("The run ran out of memory", "Make the batch smaller"),
    "killed": (
        "The run was killed from outside",
        "See `dmesg` or the scheduler's log: the kernel kills a program when the machine's memory runs out",
    ),
    "interrupted": ("The run was interrupted", "Let it run on where a check below asks for more steps"),
    "running": (
        "The run was still going on, or was killed with its recorder,",
        "Report again when it has ended",
    ),
}
"""What is said of a run that did not finish, and what to do next."""
CLAUSE_END = re.compile(r"[;.](?=\s|$)")
"""Where the place of what is told fits in."""
MAX_MESSAGE = 300
"""Letters of an exception's message: some hold whole tensors."""

RECORD = "Record the training with 'efprof record -- COMMAND' to have its steps, time and numbers checked."
TRACE_MORE = "Trace more calls, after a warm-up and with `with_stack=True`, to see what each line takes."
"""Of inference, which is not recorded."""


@frozen_dataclass
class RankedFinding:
    """A finding with its place from 1, its key in other reports of the same code, its anchor, and its gain in words."""

    rank: int
    key: str
    anchor: str
    audit_id: str
    finding: Finding
    gain: str


def rank_findings(report: Report) -> tuple[RankedFinding, ...]:
    """Every finding of the run: why it ended, then the most severe and most gainful first; the key breaks ties."""
    measured = report.measurements
    whole, peak, of_step = measured.whole_ms, measured.peak_bytes, "of the median step"
    if measured.traced_ms:
        of_step = "of the mean step" if measured.metrics else "of the trace"
    found = [(audit.key_of(finding), audit.audit_id, finding) for audit in report.audits for finding in audit.findings]
    # A run that ran out of memory opens with the audit of that name, whatever another fix saves.
    found.sort(key=lambda item: (item[1] != report.run.ended, *_order(item[2], whole, peak), item[0]))
    taken, proofs = Counter[str](), newest_proofs(report)
    ranked = []
    for rank, (key, audit_id, finding) in enumerate(found, start=1):
        taken[key] += 1
        anchor = anchor_of(key) + (f"-{taken[key]}" if taken[key] > 1 else "")
        gain = gain_phrase(finding.gain, whole, peak, of_step)
        if key in proofs:
            gain = f"{gain}; {proof_sentence(proofs[key])}"
        ranked.append(RankedFinding(rank=rank, key=key, anchor=anchor, audit_id=audit_id, finding=finding, gain=gain))
    return tuple(ranked)


def find_finding(report: Report, name: str) -> RankedFinding:
    """By its number, the key that the JSON form has for it, or the id of its audit, of which the first is meant.

    Raises EfprofError where there is none.
    """
    ranked = rank_findings(report)
    for item in ranked:
        if name in (str(item.rank), item.key, item.audit_id):
            return item
    known = [word for item in ranked for word in (str(item.rank), item.audit_id)]
    raise EfprofError(f"there is no finding '{name}' in this report; {nearest_to(name, known)}")


@frozen_dataclass
class VerdictLines:
    """The three lines; `blame` is the line the second one names, `commands` prove the third."""

    verdict: str
    why: str
    blame: SourceLine | None = None
    next: str
    commands: tuple[str, ...] = ()
    tone: Severity | Literal["none"]


def describe_verdict(report: Report) -> VerdictLines:
    run = report.run
    # What has nothing to do with how the run ended may not stand as its reason.
    reason = "memory" if run.ended == "out_of_memory" else "numbers" if run.error is not None else None
    ranked = rank_findings(report)
    lead = next((item for item in ranked if reason is None or item.finding.category == reason), None)
    ending = ending_sentence(run)
    if lead is None:
        return _without_lead(report, ending)
    finding = lead.finding
    return VerdictLines(
        verdict=one_line(f"{ending} {_what_happens(finding)}"),
        why=one_line(finding.why),
        blame=finding.blame,
        next=one_line(f"{finding.fix.summary} {recorder_hint(run)}"),
        commands=_proving_commands(run),
        tone="high" if ending else finding.severity,
    )


def _what_happens(finding: Finding) -> str:
    """The message with its line; of what costs little it says so first."""
    told, where = finding.message, str(finding.blame)
    if where not in told:
        told = CLAUSE_END.sub(lambda end: f" ({where}){end[0]}", told, count=1)
    if finding.severity != "low":
        return told
    return f"Nothing costs much; {'what may still be filling' if finding.may_be_filling else 'the largest'}: {told}"


def counts_phrase(report: Report) -> str:
    """`3 findings (memory 1, time 2); 19 checks passed, 5 not applicable`."""
    statuses = Counter(audit.status for audit in report.audits)
    categories = Counter(finding.category for audit in report.audits for finding in audit.findings)
    passed = format_count(statuses["passed"], "check")
    kinds = ", ".join(f"{name} {categories[name]}" for name in get_args(Category) if categories[name])
    broke = f", {statuses['errored']} broke" if statuses["errored"] else ""
    return (
        f"{format_count(categories.total(), 'finding')}{in_brackets(kinds)}; {passed} passed, "
        f"{statuses['not_applicable']} not applicable{broke}"
    )


def grouped_checks(report: Report) -> list[tuple[AuditResult, tuple[str, ...]]]:
    """Each check, and last of all those that lack the same thing as several others, once, with the names of all."""
    lacking = defaultdict[str, list[AuditResult]](list)
    for audit in report.audits:
        if audit.status == "not_applicable":
            lacking[audit.reason].append(audit)
    several = [(audits[0], tuple(one.audit_id for one in audits)) for audits in lacking.values() if len(audits) > 1]
    named = {name for _, names in several for name in names}
    return [*((one, (one.audit_id,)) for one in report.audits if one.audit_id not in named), *several]


def needs_phrase(report: Report) -> str:
    """`9 need a CUDA device; others need several ranks, a budget`: what checks with nothing to look at need."""
    needs = Counter(filter(None, map(_need_of, report.audits)))
    several = [f"{num} need {need}" for need, num in needs.most_common() if num > 1]
    alone = [need for need, num in needs.items() if num == 1]
    return "; ".join([*several, *([f"others need {', '.join(alone)}"] if alone else [])])


def _need_of(audit: AuditResult) -> str:
    """What a check needs that the run has not; empty of one that looked, or could not for another reason."""
    is_needed = audit.status == "not_applicable" and audit.reason.startswith(NEEDS)
    return audit.reason.removeprefix(NEEDS).removesuffix(".").partition(" (")[0] if is_needed else ""


def header_items(run: RunIdentity) -> tuple[str, ...]:
    """Which run this is, in the order every rendering shows it."""
    ranks = f"{run.num_ranks} ranks" if run.num_ranks > 1 else ""
    devices, ended = device_phrase(run.devices), run.ended.replace("_", " ")
    items = [run.name, revision(run), devices, ranks, format_count(run.num_steps, "step"), ended]
    if run.ended == FOREIGN:
        kind = "a profiler trace" if run.num_steps else "a memory snapshot"
        items = [run.name, devices if run.devices else "", ranks, f"{kind}, without its run"]
    return tuple(one_line(item) for item in items if item)


def revision(run: RunIdentity) -> str:
    """`main@3f2c1ab+dirty`; empty outside a repository."""
    if run.branch is None and run.commit is None:
        return ""
    commit = f"@{run.commit[:7]}" if run.commit else ""
    return f"{run.branch or 'detached'}{commit}{'+dirty' if run.is_dirty else ''}"


def measured_phrase(report: Report) -> str:
    """The two numbers of each run: `median step 12.3 ms, peak memory 4.10 GiB. Memory was read from ...`."""
    measured = report.measurements
    peak, source = show(measured.peak_bytes, "bytes"), source_phrase(measured.memory_source)
    most = max(measured.evaluations, key=lambda each: each.peak_bytes, default=None)
    if most is not None and most.peak_bytes > (measured.peak_bytes or 0):
        what = "a rollout" if most.is_rollout else "an evaluation"
        peak = f"{show(most.peak_bytes, 'bytes')} in {what} ({peak} in a step)"
    counted = f". Memory was read from {source}" if source and measured.peak_bytes else ""
    steps, memory = measured.timeline.steps, measured.timeline.memory
    if steps and memory:
        end, last = steps[-1].step, max(sample.step for sample in memory)
        if end - last > MAX_UNREAD_SHARE * (end - steps[0].step):  # the run went on for long after it
            counted += f" up to step {last:,}"
    mean = f"mean step {show(measured.traced_ms, 'ms')}, " if measured.traced_ms and measured.metrics else ""
    return f"{mean}median step {show(measured.median_step_ms, 'ms')}, peak memory {peak}{counted}"


def gpu_phrase(report: Report) -> str:
    """`On a GPU, an estimate: peak reserved 1.40 GiB (1.40 GiB to 1.61 GiB)`, or why not; empty where nobody asked."""
    match report.measurements.gpu_estimate:
        case (Numbers() as estimate, *_):
            figures = [
                f"{one.label} {show(one.value, one.unit)}"
                + in_brackets(format_interval(*one.interval, one.unit) if one.interval else "")
                for one in estimate.numbers
            ]
            return f"On a GPU, an estimate: {', '.join(figures)}."
        case (Narrative() as absent,):
            return f"{absent.title}: {absent.paragraphs[0]}"
        case _:
            return ""


def run_time_phrase(report: Report) -> str:
    """`Of the run's 8.0 s: usual steps 62 %, long steps 21 %, start 17 %`; empty where that was not measured."""
    parts = report.measurements.run_time
    total = sum(seconds for _, seconds in parts)
    shares = [f"{name} {format_share(seconds / total)}" for name, seconds in parts if seconds >= MIN_SHOWN * total]
    return f"Of the run's {show(total, 's')}: {', '.join(shares)}." if shares else ""


def overhead_phrase(report: Report) -> str:
    """What recording cost as the recorder measured, what it might, and how many steps were recorded in full for it."""
    overhead = report.measurements.overhead
    if overhead is None:
        return "The cost of recording was not measured."
    seconds = overhead.step_ms * overhead.num_steps / 1000 + (overhead.beside_steps_s or overhead.window_s)
    of_all = f" of {show(report.run.duration_s, 's')}" if report.run.duration_s else ""
    most = ""
    if overhead.allowance_s is not None and overhead.allowed_share is not None:
        most = f" (allowed: {show(overhead.allowance_s, 's')} + {format_share(overhead.allowed_share)})"
    full = f"{overhead.num_full_steps:,} of {format_count(overhead.num_steps, 'step')} in full"
    windows = format_count(overhead.num_windows, "window")
    return f"Recording took {show(seconds, 's')}{of_all}{most}: {full}, {windows}."


def ending_sentence(run: RunIdentity) -> str:
    """How a run ended badly, after how many steps; empty where it finished, and where only a file of it is known."""
    if run.ended in {*ENDED_WELL, FOREIGN}:
        return ""
    phrase, _ = ENDINGS.get(run.ended, ENDINGS["running"])
    when = f"after {format_count(run.num_steps, 'step')}" if run.num_steps else "before it finished a step"
    return f"{phrase} {when}{f' (exit code {run.exit_code})' if run.exit_code else ''}."


def recorder_hint(run: RunIdentity) -> str:
    """What tells whether the recorder has part in the error; empty where it cannot have."""
    error = run.error
    if error is None or error.recorder_part == "none":
        return ""
    where = f" at {error.blame}" if error.blame else ""
    if error.recorder_part == "certain":
        return f"Run it without efprof: the {error.kind}{where} is the recorder's own."
    return (
        f"Read what the program itself said last. Should the {error.kind}{where} not come without efprof, try "
        "`efprof record --windows none`."
    )


def _order(finding: Finding, median: float | None, peak: int | None) -> tuple[float, ...]:
    step_ms, num_bytes = finding.gain.step_ms or 0.0, finding.gain.peak_bytes or 0
    whole_ms = finding.gain.late_step_ms or median or math.inf
    largest_share = max(step_ms / whole_ms, num_bytes / (peak or math.inf))
    place = get_args(Severity).index(finding.severity)
    is_wrong = finding.category == "numbers" and place == 0  # what is computed wrong comes before what is slow
    return finding.may_be_filling, place, not is_wrong, -largest_share, -step_ms, -num_bytes


def _without_lead(report: Report, ending: str) -> VerdictLines:
    run, num_looked = report.run, sum(audit.status in ("passed", "failed") for audit in report.audits)
    if run.ended == FOREIGN:
        return _of_a_file(report, num_looked)
    num_checks = sum(not _need_of(audit) for audit in report.audits)
    can_tell = run.num_steps > 0 and num_looked * 2 >= num_checks > 0
    clean = "No fault was found."
    if not can_tell:  # a run that most checks could not look at is not called clean
        clean = f"Too little was recorded: {num_looked} of {format_count(num_checks, 'check')} could look."
    return VerdictLines(
        verdict=ending or clean,
        why=_why_without_lead(report, ending, num_looked),
        blame=run.error.blame if run.error else None,
        next=_next_without_lead(report, can_tell=can_tell),
        tone="none" if can_tell and not ending else "medium" if run.ended in (*ENDED_WELL, "running") else "high",
    )


def _of_a_file(report: Report, num_looked: int) -> VerdictLines:
    """What a file alone tells that nothing is wrong with, as far as it tells anything."""
    looked, measured = [audit.reason for audit in report.audits if audit.status == "passed"], report.measurements
    why = [f"{format_count(num_looked, 'check')} passed: {looked[0]}." if looked else "", *report.warnings[-1:]]
    record = RECORD if not measured.is_inference else "" if measured.next_experiment else TRACE_MORE
    is_told = bool(measured.time_sentence or measured.memory_sentence or num_looked)
    clean = "No fault was found." if num_looked else "This file does not tell what filled the memory."
    return VerdictLines(
        verdict=one_line(measured.time_sentence or measured.memory_sentence or clean),
        why=one_line(next(filter(None, why), "No check found a fault.")),
        next=" ".join(filter(None, (measured.next_experiment if measured.time_sentence else "", record))),
        commands=(_what_if(report.run),) if num_looked and not measured.time else (),
        tone="none" if is_told else "medium",
    )


def _what_if(run: RunIdentity) -> str:
    return f"efprof allocator what-if {one_line(shlex.quote(run.path))}"


def _why_without_lead(report: Report, ending: str, num_looked: int) -> str:
    error = report.run.error
    if error is not None:  # `RuntimeError in the forward stage of step 5: boom`
        stage = f"the {error.stage} stage of " if error.stage and error.stage != "other" else ""
        message = shorten(error.message, MAX_MESSAGE)
        return sentence(f"{error.kind} in {stage}step {error.step:,}{f': {message}' if message else ''}")
    if not report.run.num_steps:
        return "No training step was recorded."
    if not num_looked:
        return "No check could run: each one says below what it would need."
    steps = "so far" if ending else f"over {format_count(report.run.num_steps, 'step')}"
    goes = f" {report.measurements.time_sentence}" if report.measurements.time_sentence else ""
    return f"{format_count(num_looked, 'check')} passed {steps}: {measured_phrase(report)}.{goes}"


def _next_without_lead(report: Report, *, can_tell: bool) -> str:
    run = report.run
    if run.ended not in ENDED_WELL:
        return recorder_hint(run) or ENDINGS.get(run.ended, ENDINGS["running"])[1] + BELOW
    if not run.num_steps:
        return "Record a program that trains with PyTorch: a step counts once an optimizer has stepped."
    if not can_tell:
        return "Record again with what the checks below name."
    experiment = report.measurements.next_experiment or "Nothing needs to change."
    return f"{experiment} Keep this run as the base to compare the next one with."


def _proving_commands(run: RunIdentity) -> tuple[str, ...]:
    if run.ended == FOREIGN:
        return () if run.num_steps else (_what_if(run),)
    command = one_line(shlex.join(run.command))
    return f"efprof record -- {command}", f"efprof compare {one_line(run.run_id)} latest"
