"""A variable that keeps tensors together with the autograd graphs that made them."""

import dataclasses
from functools import partial

from efprof.facts.growth.leaks import Leak, Leaks, leak_finding, most_to_keep
from efprof.facts.run.run import Run
from efprof.facts.run.run_limits import RunLimits
from efprof.facts.source.sources import file_of
from efprof.fixes.keep_less import (
    CLONED,
    DETACHED,
    caught_error,
    end_feeding,
    keep_fewer,
    keep_without_graph,
    kept_at,
    without_traceback,
)
from efprof.model import Examination, Finding
from efprof.units import format_bytes

MIN_LEFT_SHARE = 0.1
"""Of the growth: what detaching leaves of it is told from there on; less is lost among what is rounded."""


MOST_LEFT_SHARE = 0.5
"""With more, to bound it is the fix."""


def retained_graph(run: Run) -> Examination:
    """Find the variable that keeps graphs from step to step, and the line that was seen to feed it.

    ## What it finds
    Tensors with a `grad_fn` that survive their step: a list of losses, a running total, a state handed on without a
    cut. A variable that kept more at each of several counts is a leak, whatever the trend of memory says.

    ## Why it matters
    A graph keeps what its operations saved for backward, often a step's activations: memory fills up in few steps.

    ## Fix
    Keep the value without its graph (`.detach()` or `.item()`) at that line; an error, without its traceback.

    ## Predicted gain
    The measured slope times the steps recorded, less the tensors themselves; without a trend, the bytes counted.
    """
    return run.get(Leaks).examine("graphs", partial(_finding, run))


def _finding(run: Run, leak: Leak) -> Finding:
    """With what to write instead where the line keeps one value; what is then still kept is not saved."""
    main, file = leak.kept[0], file_of(run, leak.blame)
    if main.is_fed_by_library:
        return leak_finding(run, leak, end_feeding(main.path or main.name, main.type, leak.blame.text))
    values = {kept_at(file, leak.blame.line, one.name) for one in leak.kept} if leak.is_observed else set()
    kept = values.pop() if len(values) == 1 else None
    if kept and "Tensor" not in main.entry and (error := caught_error(kept.value, file.tree)):
        return leak_finding(run, leak, without_traceback(file, main.name, error))
    fix = keep_without_graph(
        file,
        kept,
        name="` and `".join(one.name for one in leak.kept),
        kind=main.type,
        entry=main.entry,
        how=CLONED if main.is_view else DETACHED,
    )
    left = sum(one.value_rate for one in leak.kept)
    if left > MOST_LEFT_SHARE * leak.rate.slope and not main.is_view:
        fix = keep_fewer(
            [one.name for one in leak.kept],
            main.type,
            *most_to_keep(run, leak),
            are_numbers=main.are_numbers,
            is_device=run.get(RunLimits).is_device,
        )
        graphs = f"{format_bytes(max(0.0, leak.rate.slope - left))} of {format_bytes(leak.rate.slope)} per step"
        return leak_finding(
            run, leak, dataclasses.replace(fix, summary=f"{fix.summary} Detached, it keeps {graphs} less.")
        )
    fix = dataclasses.replace(fix, summary=fix.summary + _what_is_left(leak, left))
    return leak_finding(run, leak, fix, left_per_step=left)


def _what_is_left(leak: Leak, left: float) -> str:
    """What detaching does not give back: the tensors, from a tenth of the growth on."""
    if leak.kept[0].is_view:
        return " `.detach()` alone would keep the larger memory that the tensor is a part of; `.item()` keeps a number."
    if left < MIN_LEFT_SHARE * leak.rate.slope:
        return ""
    return (
        f" That leaves the tensors themselves, {format_bytes(min(left, leak.rate.slope))} of "
        f"{format_bytes(leak.rate.slope)} per step: bound `{leak.kept[0].name}` as well, or keep one number of each."
    )
