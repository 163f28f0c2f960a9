"""How a case came out: what was found, and the gain that was predicted beside the one that was measured."""

import statistics
from dataclasses import dataclass
from itertools import groupby

from efprof.model import CodeEdit, Finding, MemorySample, Report
from efprof.report.verdict import peak_bytes
from tests.casebook._cases import Case


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How one case came out in one pair of runs, recorded one after the other."""

    case: Case
    sick: Report
    healthy: Report
    fixed: Report | None
    found: int
    on_line: int
    extra: tuple[str, ...]
    false_alarms: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        wanted = len(self.case.faults)
        is_told = self.found == self.on_line == wanted and not self.extra and not self.false_alarms
        return is_told and not self.is_broken_by_fix

    @property
    def verdict(self) -> tuple[str, ...]:
        """What both runs were told, place by place: the same, we hope, however often it is recorded."""
        sides = (("sick", self.sick), ("healthy", self.healthy))
        return tuple(f"{side}: {audit} at {finding.blame}" for side, run in sides for audit, finding in findings(run))

    @property
    def mended(self) -> Report:
        """What the sick run is measured against: the run with the report's edits, if those mend every fault."""
        told = [finding for audit, finding in findings(self.sick) if audit in dict(self.case.faults)]
        has_edits = all(any(isinstance(change, CodeEdit) for change in finding.fix.changes) for finding in told)
        return self.fixed if self.fixed is not None and has_edits else self.healthy

    @property
    def is_broken_by_fix(self) -> bool:
        """Whether the program does not run to its end with the report's edit."""
        return self.fixed is not None and self.fixed.run.ended != "finished"


def findings(report: Report) -> list[tuple[str, Finding]]:
    """What it told, each with the audit that told it."""
    return [(result.audit_id, finding) for result in report.audits for finding in result.findings]


def predicted(entry: Score) -> tuple[float, float]:
    """Milliseconds per step and bytes of peak that the fixes of the expected findings promise together."""
    gains = [finding.gain for audit, finding in findings(entry.sick) if audit in dict(entry.case.faults)]
    return sum(gain.step_ms or 0.0 for gain in gains), float(sum(gain.peak_bytes or 0 for gain in gains))


def measured(entry: Score) -> tuple[float, float]:
    """The same, of the sick run less the mended one."""
    step_ms = _median(entry.sick, "step_ms") - _median(entry.mended, "step_ms")
    if until_step(entry) is None and not any(_samples(entry.sick, "memory_growth_bytes_per_step")):
        return step_ms, float((peak_bytes(entry.sick) or 0) - (peak_bytes(entry.mended) or 0))
    until = both_read_until(entry)
    return step_ms, float(_peak_outside_windows(entry.sick, until) - _peak_outside_windows(entry.mended, until))


def until_step(entry: Score) -> int | None:
    """The last step that the prediction of the peak holds for; None where it is of the whole run."""
    ends = [finding.gain.until_step for audit, finding in findings(entry.sick) if audit in dict(entry.case.faults)]
    return max((end for end in ends if end is not None), default=None)


def both_read_until(entry: Score) -> int:
    """The last step of the sick run that was read and that the mended run, which may go on growing, was read to."""
    sick, mended = ([step for step, _ in _read_outside_windows(report)] for report in (entry.sick, entry.mended))
    return max((step for step in sick if step <= max(mended, default=0)), default=0)


def _samples(report: Report, name: str) -> tuple[float, ...]:
    return next((metric.samples for metric in report.measurements.metrics if metric.name == name), ())


def _median(report: Report, name: str) -> float:
    samples = _samples(report, name)
    return statistics.median(samples) if samples else 0.0


def _peak_outside_windows(report: Report, until_step: int) -> int:
    """The highest boundary of any step but those in windows, up to a step.

    One that was read at its end alone is taken to need as much within it as the last one that was read throughout.
    """
    read = [samples for step, samples in _read_outside_windows(report) if step <= until_step]
    fullest = max((len({sample.boundary for sample in samples}) for samples in read), default=0)
    peak = needed = 0
    for samples in read:
        highest = max(sample.allocated_bytes for sample in samples)
        kept = max(samples[0].allocated_bytes, samples[-1].allocated_bytes)
        if len({sample.boundary for sample in samples}) == fullest:
            needed = highest - kept
        peak = max(peak, highest, kept + needed)
    return peak


def _read_outside_windows(report: Report) -> list[tuple[int, list[MemorySample]]]:
    """The steps whose memory was read, each with what was read of it."""
    timeline = report.measurements.timeline
    in_windows = {step.step for step in timeline.steps if step.is_in_window}
    by_step = groupby(timeline.memory, lambda sample: sample.step)
    return [(step, list(samples)) for step, samples in by_step if step not in in_windows]
