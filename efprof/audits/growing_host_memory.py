"""Memory of the host, other than tensors, that every step leaves behind."""

import shlex

from efprof.facts.host_growth import HostGrowth, is_told_of_tensors
from efprof.facts.host_growth_evidence import (
    host_growth_evidence,
    host_growth_message,
    host_growth_severity,
    most_steps_kept,
)
from efprof.facts.host_growth_lines import HOST_FILE, WAYS_TO_BOUND, HostGrowthLines
from efprof.facts.run import Run
from efprof.fixes.keep_less import listed
from efprof.model import Examination, Finding, Fix, Gain, ThinEvidence
from efprof.units import format_bytes


def growing_host_memory(run: Run) -> Examination:
    """Find a process whose resident memory rises with every step beyond what its tensors take.

    What it finds
    -------------
    Python objects that outlive their step: a log of dictionaries, a cache keyed by the step, lists of numbers. Where
    tensors grow by more than all else, the audits of tensors tell of it, and this one is silent until that is mended.

    Why it matters
    --------------
    The host runs out of memory, and its system kills the process without a message, often after days.

    Fix
    ---
    Bound what the line fills, or write it to a file; where the line is not known, a recording that tells it.

    Predicted gain
    --------------
    None of the peak of allocated memory, which counts no Python objects; the rise that was measured is told.
    """
    growth = run.get(HostGrowth)
    looked_at = f"memory of the host {growth.fit.looked_at}"
    if not growth.is_growing:
        return Examination(looked_at=looked_at)
    if is_told_of_tensors(run):
        return Examination(looked_at=f"{looked_at}, which grows no more than tensors do")
    lines = run.get(HostGrowthLines)
    if lines.mapping is not None:
        raise ThinEvidence(
            f"{looked_at} rises, but {lines.mapping} maps files into memory, which count as its own once "
            "they are read; record a second epoch, where they add nothing."
        )
    return Examination(looked_at=looked_at, findings=(_finding(run, growth, lines),))


def _finding(run: Run, growth: HostGrowth, lines: HostGrowthLines) -> Finding:
    return Finding(
        blame=lines.blame,
        category="memory",
        headline="Host memory grows with every step"
        if lines.name is None
        else f"`{lines.name}` fills the host's memory",
        message=host_growth_message(run),
        fix=_fix(run, lines),
        gain=Gain(
            basis="measured bound",
            explanation=f"{format_bytes(growth.fit.rise_bytes)} of host memory {growth.fit.stretch}; it is no "
            "part of the peak of allocated memory, so nothing is claimed of that",
        ),
        evidence=host_growth_evidence(run),
        severity=host_growth_severity(run),
    )


def _fix(run: Run, lines: HostGrowthLines) -> Fix:
    kept = most_steps_kept(run)
    bound = "" if kept is None else f" What {kept:,} steps put into it takes 1 % of the host's memory."
    if lines.name is not None:
        return Fix(summary=f"Bound `{lines.name}` {WAYS_TO_BOUND}.{bound}", applicability="manual")
    found = [
        f"`{name}` at {line}" for name, line in zip(lines.names, lines.statements, strict=True) if name is not None
    ]
    if not found:
        return Fix(summary=f"Find what is kept: {_how_to_find(run, lines)}.", applicability="manual")
    return Fix(
        summary=f"Bound what nothing empties: {listed(found)}; each {WAYS_TO_BOUND}. If one of them is meant to grow: "
        f"{_how_to_find(run, lines)}.",
        applicability="manual",
    )


def _how_to_find(run: Run, lines: HostGrowthLines) -> str:
    if lines.captured:
        return f"'python -m memray tree {shlex.quote(str(run.rank_folder / HOST_FILE))}' prints what was held, by line"
    command = shlex.join(run.run_file.command)
    return (
        f"'efprof record --host-memory -- {command}' records every allocation of the host with its line, and "
        f"'python -m memray tree' prints them from {HOST_FILE} in the run's rank folder"
    )
