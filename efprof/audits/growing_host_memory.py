"""Memory of the host, other than tensors, that every step leaves behind."""

import shlex

from efprof.facts.growth.leaks import may_be_filling, place_to_blame
from efprof.facts.growth.unheld_growth import HostGrowth, host_growth_evidence, host_limits
from efprof.facts.run.run import Run
from efprof.fixes.keep_less import WAYS_TO_BOUND
from efprof.model import Examination, Finding, Fix, Gain, ThinEvidence
from efprof.units import format_bytes, format_interval, in_brackets

HOST_FILE = "host.memray"
"""In the rank folder, with `--host-memory`; memray itself reads it."""


def growing_host_memory(run: Run) -> Examination:
    """Find containers of Python objects that fill the host's memory, and the line that was seen to feed them.

    ## What it finds
    Containers of Python objects that were longer at every count, whose entries explain the growth of resident memory or
    take much by themselves. Resident memory alone never decides: mapped files and a heap in pieces look like a leak.

    ## Why it matters
    The host runs out of memory, and its system kills the process without a message, often after days.

    ## Fix
    Bound what the line fills, or write it to a file.

    ## Predicted gain
    None of the peak of allocated memory, which counts no Python objects; the rise that was measured is told.
    """
    growth = run.get(HostGrowth)
    looked_at = f"memory of the host {growth.fit.looked_at}"
    if growth.is_explained:
        return Examination(looked_at=looked_at, findings=(_finding(run, growth),))
    if growth.is_growing:
        raise ThinEvidence(
            f"{looked_at} grows {format_bytes(growth.fit.trend.slope)} per step, but no container was counted that "
            f"explains it, and resident memory alone tells no leak; {_how_to_find(run)}."
        )
    if unsure := [one for one in growth.containers if one.verdict == "leak"]:
        raise ThinEvidence(f"`{unsure[0].name}` was counted to grow, of which {looked_at} shows little; record longer.")
    return Examination(looked_at=looked_at)


def _finding(run: Run, growth: HostGrowth) -> Finding:
    main, limits = growth.containers[0], host_limits(run)
    trend, rise_bytes = growth.fit.trend, growth.fit.rise_until(growth.fit.steps[-1], growth.fit.trend.slope)
    most = limits.most_kept(max(main.rate.slope, trend.slope))
    rate = f"{format_bytes(trend.slope)} per step{in_brackets(format_interval(trend.low, trend.high, 'bytes'))}"
    what = "memory outside of tensors" if growth.is_heap_read else "memory on the host"
    unseen = f" The line that feeds it is not known: {main.unseen}." if main.site is None else ""
    return Finding(
        blame=place_to_blame(run, main),
        category="memory",
        headline=f"Python objects accumulate in `{main.name}`",
        message=f"The process's {what} grows {rate}{limits.outlook(trend.slope)}.",
        why=f"`{main.name}` was counted to take at least {format_bytes(main.rate.slope)} of that.{unseen}",
        fix=Fix.by_hand(f"Bound `{main.name}` {WAYS_TO_BOUND}. {most:,} steps of entries use 1 % of host memory."),
        gain=Gain.none(f"{format_bytes(rise_bytes)} of host memory over the recorded steps"),
        evidence=host_growth_evidence(run),
        severity=limits.severity(trend.slope),
        may_be_filling=may_be_filling(run, main),
    )


def _how_to_find(run: Run) -> str:
    file = run.rank_folder / HOST_FILE
    if file.exists():
        return f"'python -m memray tree {shlex.quote(str(file))}' prints what was held, by line"
    return f"'efprof record --host-memory -- {shlex.join(run.run_file.command)}' records every allocation with its line"
