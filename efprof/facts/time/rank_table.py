"""The ranks of one training side by side, as far as their traces tell."""

from efprof.facts.run.run import Run
from efprof.facts.time.device_lanes import device_use
from efprof.facts.time.trace_windows import RankTraces, TraceWindow
from efprof.model import Table


def rank_table(run: Run) -> Table | None:
    """A row for each rank: its step, and what its device does in it; None where there is one rank."""
    traces = run.find(RankTraces) if run.is_foreign else None
    if traces is None or len(traces.windows) < 2:
        return None
    rows = tuple(_row(rank, traces.windows[rank]) for rank in sorted(traces.windows))
    columns = ("Rank", "Steps", "Step", "Busy", "Computes", "Communicates", "Nothing else runs", "Idle")
    return Table(title="Ranks, per step", columns=columns, units=("", "count", *("ms",) * 6), rows=rows)


def _row(rank: int, window: TraceWindow) -> tuple[str | float, ...]:
    num_steps = len(window.steps)
    use = device_use(window.trace, window.steps[0][0], window.steps[-1][1])
    if use is None:
        return (str(rank), float(num_steps), window.step_ms, "", "", "", "", "")
    communicates = use.kind_ns["communication"]
    spent = (use.busy_ns, use.kind_ns["compute"], communicates, use.exposed_ns, use.span_ns - use.busy_ns)
    return (str(rank), float(num_steps), window.step_ms, *(one / 1e6 / num_steps for one in spent))
