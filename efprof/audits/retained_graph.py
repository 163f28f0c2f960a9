"""A variable that keeps tensors together with the autograd graphs that made them."""

from efprof.facts.growth_evidence import growth_evidence, growth_gain, growth_message, growth_severity
from efprof.facts.growth_suspects import GrowthSuspect, GrowthSuspects
from efprof.facts.holder_entries import tensor_bytes_per_step
from efprof.facts.holder_keys import shown_name
from efprof.facts.memory_growth import MemoryGrowth
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.fixes.keep_less import KeepingStatement, keep_without_graph
from efprof.fixes.tensor_values import is_caught_error
from efprof.fixes.weak_reference import without_traceback
from efprof.model import Examination, Finding, Fix


def retained_graph(run: Run) -> Examination:
    """Find the variable that keeps graphs from step to step, and the statement that feeds it.

    What it finds
    -------------
    Tensors with a `grad_fn` that survive their step: a list of losses, a running total, a state handed on without a
    cut. The holder is known by counting what each variable keeps, twice.

    Why it matters
    --------------
    A graph keeps what its operations saved for backward, often a step's activations: memory fills up in few steps.

    Fix
    ---
    Keep the value without its graph (`.detach()` or `.item()`) at that statement; an error, without its traceback.

    Predicted gain
    --------------
    The measured slope times the steps recorded, and never more than the rise that was measured, less the tensors
    themselves, which detaching leaves where they are.
    """
    growth = run.get(MemoryGrowth)
    looked_at = f"memory retained {growth.fit.looked_at}"
    if not growth.is_growing and not growth.is_growing_slowly:
        return Examination(looked_at=looked_at)
    keeping = [suspect for suspect in run.get(GrowthSuspects).suspects if suspect.keeps_graphs]
    return Examination(looked_at=looked_at, findings=tuple(_finding(run, growth, suspect) for suspect in keeping))


def _finding(run: Run, growth: MemoryGrowth, suspect: GrowthSuspect) -> Finding:
    statement, sources = _keeping_statement(suspect, growth.fit.trend.slope), run.get(Sources)
    fix, left_per_step = _fix(statement, sources)
    return Finding(
        blame=suspect.blame,
        category="memory",
        headline=f"`{statement.name}` keeps tensors with their graphs",
        message=growth_message(run, suspect),
        fix=fix,
        gain=growth_gain(growth.fit, suspect.share, left_per_step=left_per_step),
        evidence=growth_evidence(run, suspect),
        severity=growth_severity(run),
    )


def _fix(statement: KeepingStatement, sources: Sources) -> tuple[Fix, float]:
    """What to write instead, and the bytes that are then still kept with every step."""
    lines, tree = sources.files[statement.file], sources.tree(statement.file)
    assert tree is not None, "the statement was found in it"
    if is_caught_error(statement.value, tree):
        return without_traceback(statement.file, lines, statement.name, statement.value), 0.0
    others = [other for other in map(sources.tree, sources.files) if other is not None]
    return keep_without_graph(statement, lines, tree, others), statement.tensor_bytes_per_step


def _keeping_statement(suspect: GrowthSuspect, slope: float) -> KeepingStatement:
    """The likeliest statement that feeds a suspect's holder; a suspect with a holder has one."""
    assert suspect.holder is not None
    holder, kept = suspect.holder.holder, suspect.holder.statements[0]
    return KeepingStatement(
        file=kept.file,
        line=kept.line,
        name=shown_name(holder),
        kind=holder.type,
        value=kept.value,
        carried=kept.carried,
        readers=suspect.holder.readers,
        bytes_per_step=suspect.share * slope,
        tensor_bytes_per_step=tensor_bytes_per_step(suspect.holder),
    )
