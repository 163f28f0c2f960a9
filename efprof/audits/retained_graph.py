"""A variable that keeps tensors together with the autograd graphs that made them."""

import ast
from collections.abc import Iterator, Sequence
from functools import partial

from efprof.facts.growth_causes import who_keeps
from efprof.facts.growth_evidence import growth_evidence, growth_gain, growth_message, growth_severity
from efprof.facts.growth_suspects import GrowthSuspect, GrowthSuspects
from efprof.facts.holder_entries import part_of_slope, tensor_bytes_per_step
from efprof.facts.holder_keys import shown_name
from efprof.facts.holder_lines import HolderGrowth
from efprof.facts.memory_growth import MemoryGrowth
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.fixes.keep_less import KeepingStatement, keep_without_graph
from efprof.fixes.source_edit import make_together
from efprof.fixes.tensor_values import caught_error
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
    fix, left_per_step = _fix(run, suspect, growth.fit.trend.slope)
    return Finding(
        blame=suspect.blame,
        category="memory",
        headline=f"{who_keeps([shown_name(one.holder) for one in suspect.holders])} tensors with their graphs",
        message=growth_message(run, suspect),
        fix=fix,
        gain=growth_gain(growth.fit, suspect.share, left_per_step=left_per_step),
        evidence=growth_evidence(run, suspect),
        severity=growth_severity(run),
    )


def _fix(run: Run, suspect: GrowthSuspect, slope: float) -> tuple[Fix, float]:
    """What to write instead for all holders of the line, and the bytes that are then still kept with every step."""
    sources = run.get(Sources)
    statements = sorted(_keeping_statements(suspect, slope), key=_place, reverse=True)
    lines, tree = sources.files[statements[0].file], sources.tree(statements[0].file)
    assert tree is not None, "the statement was found in it"
    others = [other for other in map(sources.tree, sources.files) if other is not None]
    makers = [partial(_fix_of, statement, tree, others) for statement in statements]
    left = sum(0.0 if caught_error(one.value, tree) else one.tensor_bytes_per_step for one in statements)
    return make_together(statements[0].file, lines, makers), left


def _fix_of(statement: KeepingStatement, tree: ast.Module, others: list[ast.Module], lines: Sequence[str]) -> Fix:
    if error := caught_error(statement.value, tree):
        return without_traceback(statement.file, lines, statement.names[0], error)
    return keep_without_graph(statement, lines, tree, others)


def _place(statement: KeepingStatement) -> tuple[int, int]:
    changed = statement.carried or statement.value
    return changed.lineno, changed.col_offset


def _keeping_statements(suspect: GrowthSuspect, slope: float) -> Iterator[KeepingStatement]:
    """What the line keeps, each value once: the likeliest statement that feeds a holder; one with a holder has one."""
    by_value: dict[tuple[int, int], list[HolderGrowth]] = {}
    for growth in suspect.holders:
        changed = growth.statements[0].carried or growth.statements[0].value
        by_value.setdefault((changed.lineno, changed.col_offset), []).append(growth)
    for fed in by_value.values():
        kept = fed[0].statements[0]
        yield KeepingStatement(
            file=kept.file,
            line=kept.line,
            names=tuple(shown_name(growth.holder) for growth in fed),
            kind=fed[0].holder.type,
            value=kept.value,
            carried=kept.carried,
            readers=tuple(dict.fromkeys(reader for growth in fed for reader in growth.readers)),
            bytes_per_step=sum(part_of_slope(suspect, growth, slope) for growth in fed),
            tensor_bytes_per_step=sum(map(tensor_bytes_per_step, fed)),
        )
