"""Functions that `torch.compile` compiles again and again."""

from efprof.facts.run.run import Run
from efprof.facts.source.sources import line_at
from efprof.facts.time.compilations import Compilations, Recompiled
from efprof.model import Examination, Finding, Fix, Gain, Narrative, severity_by_share
from efprof.units import format_count, format_ms, format_share

MIN_TIMES = 3
"""Once for another size, from which on sizes are dynamic, and once for an evaluation, are usual."""


def recompilation(run: Run) -> Examination:
    """Find compiled functions that are compiled again for each new size or value.

    ## What it finds
    A function that `torch.compile` compiled three times or more beyond the first, the guard that failed, the line that
    ran it, and the seconds that it took.

    ## Why it matters
    Each time takes seconds. After eight, by default, torch gives up, and the function runs as if it were not compiled.

    ## Fix
    By the guard: `mark_dynamic` for the dimension that changes, or a tensor in the place of the number that does.

    ## Predicted gain
    The seconds of these compilations, of all that the run's steps took; in a longer run they are a smaller share.
    """
    found = run.get(Compilations)
    often = [one for one in found.recompiled if one.num_times >= MIN_TIMES]
    return Examination(
        looked_at=format_count(found.num_all, "compilation"),
        findings=tuple(_finding(run, one) for one in often),
    )


def _finding(run: Run, one: Recompiled) -> Finding:
    blame = line_at(run, one.site)
    took = format_ms(1000 * one.seconds)
    share = one.seconds / max(one.seconds, sum(record.total_us for record in run.steps) / 1e6)
    return Finding(
        blame=blame,
        category="time",
        headline="A compiled function is compiled again and again",
        message=f"{one.num_times} recompilations of `{one.function}` took {took} at {blame}, "
        f"{format_share(share)} of all steps' time.",
        why=f"{_cause(one)}, and torch compiles again for each new value.",
        fix=Fix.by_hand(_fix(one)),
        gain=Gain.none(f"{took}, {format_share(share)} of all that this run's steps took"),
        evidence=(
            Narrative.of(
                f"By torch's own record of each compilation. The guard that failed last: `{one.guard}`.",
                "A longer run of the same program compiles no more often once torch has given up, which it does "
                "without an error.",
            ),
        ),
        severity=severity_by_share(share),
    )


def _cause(one: Recompiled) -> str:
    if one.dimension is not None:
        return f"Dimension {one.dimension} of `{one.name}` changes from call to call"
    return f"`{one.name}` changes from call to call" if one.value else f"The guard `{one.guard}` fails"


def _fix(one: Recompiled) -> str:
    if one.dimension is not None:
        return f"Call `torch._dynamo.mark_dynamic({one.name}, {one.dimension})` before, or pad to few sizes."
    if one.value and "'lr'" in str(one.name):
        return "Give the optimizer its learning rate as a tensor, `lr=torch.tensor(...)`, without `foreach=True`."
    if one.value and "(" in str(one.name):  # as `len(views)`
        return f"Keep `{one.name}` the same, by padding or stacking; or keep it out of the compiled function."
    if one.value:
        return f"Make `{one.name}` a tensor, or keep it out of the compiled function: there it is a constant."
    return f"Keep constant what this guard asks for: `{one.guard}`; or compile with `dynamic=True`."
