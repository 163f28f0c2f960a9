"""The order of findings: by severity, then by what their fix saves."""

import statistics
from collections import Counter
from dataclasses import dataclass
from typing import Final

from efprof.model import Finding, Report, Severity
from efprof.report.words.wording import anchor_of

MOST_UNREAD_SHARE: Final = 0.1
"""Of the run: memory that was last read before that is told of up to that step only."""
SEVERITY_ORDER: Final[dict[Severity, int]] = {"high": 0, "medium": 1, "low": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class RankedFinding:
    """A finding with its place, counted from 1, and the identity it keeps in the next report of the same code.

    `anchor` is its place on the page; equal keys get numbered ones.
    """

    rank: int
    key: str
    anchor: str
    audit_id: str
    finding: Finding


def rank_findings(report: Report) -> tuple[RankedFinding, ...]:
    """Every finding of the run: why it ended, then the most severe and most gainful first; the key breaks ties."""
    median, peak = median_step_ms(report), peak_bytes(report)
    found = [(audit.key_of(finding), audit.audit_id, finding) for audit in report.audits for finding in audit.findings]
    # A run that ran out of memory opens with the failure itself, whatever another fix saves.
    opening = "out_of_memory" if report.run.ended == "out_of_memory" else None
    found.sort(key=lambda item: (item[1] != opening, *_order(item[2], median, peak), item[0]))
    taken: Counter[str] = Counter()
    ranked = []
    for rank, (key, audit_id, finding) in enumerate(found, start=1):
        taken[key] += 1
        anchor = anchor_of(key) + (f"-{taken[key]}" if taken[key] > 1 else "")
        ranked.append(RankedFinding(rank=rank, key=key, anchor=anchor, audit_id=audit_id, finding=finding))
    return tuple(ranked)


def median_step_ms(report: Report) -> float | None:
    """The median of the metric `step_ms`, else of all steps, in milliseconds; None without steps."""
    steady = next((metric.samples for metric in report.measurements.metrics if metric.name == "step_ms"), ())
    times = steady or [step.total_ms for step in report.measurements.timeline.steps]
    return statistics.median(times) if times else None


def peak_bytes(report: Report) -> int | None:
    """The highest allocated memory at any boundary or within a window, in bytes; None where none was sampled."""
    sampled = [sample.allocated_bytes for sample in report.measurements.timeline.memory]
    within = [metric.samples for metric in report.measurements.metrics if metric.name == "window_peak_bytes"]
    return max([*sampled, *(int(peak) for peaks in within for peak in peaks)], default=None)


def last_read_step(report: Report) -> int | None:
    """The last step that the peak was looked for in, where the run went on for long after it; None elsewhere."""
    timeline = report.measurements.timeline
    if not timeline.steps or not timeline.memory:
        return None
    first, end = timeline.steps[0].step, timeline.steps[-1].step
    last = max(sample.step for sample in timeline.memory)
    return last if end - last > MOST_UNREAD_SHARE * (end - first) else None


def share_of(saving: float | None, whole: float | None) -> float | None:
    """A saving as a share of what it is saved from; None where either is unknown."""
    return saving / whole if saving is not None and whole else None


def _order(finding: Finding, median: float | None, peak: int | None) -> tuple[float, ...]:
    step_ms, num_bytes = finding.gain.step_ms, finding.gain.peak_bytes
    largest_share = max(share_of(step_ms, median) or 0.0, share_of(num_bytes, peak) or 0.0)
    return SEVERITY_ORDER[finding.severity], -largest_share, -(step_ms or 0.0), -(num_bytes or 0)
