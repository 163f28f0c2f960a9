"""A variable that keeps tensors together with the autograd graphs that made them."""

import ast
from collections.abc import Sequence
from functools import partial

from efprof.facts.kept import Kept
from efprof.facts.leaks import Leak, Leaks, leak_evidence, leak_gain, leak_message, who_keeps
from efprof.facts.run import Run
from efprof.facts.run_limits import RunLimits
from efprof.facts.sources import Sources
from efprof.fixes.keep_less import KeepingStatement, keep_without_graph
from efprof.fixes.kept_value import graph_readers, kept_at
from efprof.fixes.library_holders import end_feeding
from efprof.fixes.source_edit import make_together
from efprof.fixes.weak_reference import caught_error, without_traceback
from efprof.model import Examination, Finding, Fix


def retained_graph(run: Run) -> Examination:
    """Find the variable that keeps graphs from step to step, and the line that was seen to feed it.

    What it finds
    -------------
    Tensors with a `grad_fn` that survive their step: a list of losses, a running total, a state handed on without a
    cut. What each variable keeps is counted several times; one that kept more at each count is a leak, whatever the
    trend of memory says.

    Why it matters
    --------------
    A graph keeps what its operations saved for backward, often a step's activations: memory fills up in few steps.

    Fix
    ---
    Keep the value without its graph (`.detach()` or `.item()`) at that line; an error, without its traceback.

    Predicted gain
    --------------
    The measured slope times the steps recorded, less the tensors themselves, which detaching leaves where they are;
    where memory shows no trend, the bytes that were counted.
    """
    leaks = run.get(Leaks)
    found = tuple(_finding(run, leak) for leak in leaks.of_kind("graphs"))
    if not found:
        leaks.abstain_if_unclear("graphs")
    return Examination(looked_at=leaks.looked_at(), findings=found)


def _finding(run: Run, leak: Leak) -> Finding:
    fix, left_per_step = _fix(run, leak)
    return Finding(
        blame=leak.blame,
        category="memory",
        headline=who_keeps(leak.kept),
        message=leak_message(run, leak),
        fix=fix,
        gain=leak_gain(run, leak, left_per_step=left_per_step),
        evidence=leak_evidence(run, leak),
        severity=run.get(RunLimits).severity(leak.rate.slope),
    )


def _fix(run: Run, leak: Leak) -> tuple[Fix, float]:
    """What to write instead for all that the line keeps, and the bytes that are then still kept with every step."""
    main, file, sources = leak.kept[0], leak.blame.file, run.get(Sources)
    if main.fed and main.fed[0].is_within_call:
        return end_feeding(main.path or main.name, main.type, leak.blame.text), 0.0
    tree = sources.tree(file) if leak.is_observed else None
    statements = _statements(tree, leak) if tree else []
    if tree is None or not statements:
        summary = f"Keep each tensor in `{main.name}` without its graph, by `.detach()`, or `.item()` for a number."
        return Fix(summary=summary, applicability="manual"), 0.0
    fix = make_together(file, sources.files[file], [partial(_fix_of, one, tree) for one in statements])
    return fix, sum(0.0 if _error_in(one, tree) else one.tensor_bytes_per_step for one in statements)


def _statements(tree: ast.Module, leak: Leak) -> list[KeepingStatement]:
    """What the line keeps, each value once, from the last on; none where one of the holders is fed in no known way."""
    by_value: dict[tuple[int, int], tuple[KeepingStatement, list[Kept]]] = {}
    counted = sum(one.rate.slope for one in leak.kept)
    for one in leak.kept:
        kept = kept_at(tree, leak.blame.line, one.name)
        if kept is None:
            return []
        changed = kept.carried or kept.value
        same = by_value.get((changed.lineno, changed.col_offset))
        fed = [*(same[1] if same else ()), one]
        statement = KeepingStatement(
            file=leak.blame.file,
            names=tuple(each.name for each in fed),
            kind=fed[0].type,
            entry=fed[0].entry,
            kept=kept,
            readers=tuple({line for each in fed for line in graph_readers(tree, each.name, leak.blame.line)}),
            bytes_per_step=leak.rate.slope * sum(each.rate.slope for each in fed) / counted,
            tensor_bytes_per_step=sum(each.kept_rate for each in fed),
            is_view=all(each.is_view for each in fed),
        )
        by_value[changed.lineno, changed.col_offset] = statement, fed
    return [by_value[place][0] for place in sorted(by_value, reverse=True)]


def _fix_of(statement: KeepingStatement, tree: ast.Module, lines: Sequence[str]) -> Fix:
    if error := _error_in(statement, tree):
        return without_traceback(statement.file, lines, statement.names[0], error)
    return keep_without_graph(statement, lines)


def _error_in(statement: KeepingStatement, tree: ast.Module) -> ast.Name | None:
    """Beside no tensor, which would go on keeping its graph."""
    return None if "Tensor" in statement.entry else caught_error(statement.kept.value, tree)
