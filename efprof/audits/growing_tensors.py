"""A variable that keeps more tensors after every step, none of them with a graph."""

from efprof.facts.kept import Kept
from efprof.facts.leaks import Leak, Leaks, leak_evidence, leak_gain, leak_message, who_keeps
from efprof.facts.run import Run
from efprof.facts.run_limits import RunLimits
from efprof.facts.sources import Sources
from efprof.fixes.detach import tensor_in
from efprof.fixes.keep_less import Bound, keep_copies, keep_fewer
from efprof.fixes.kept_value import kept_at
from efprof.fixes.library_holders import end_feeding
from efprof.model import Examination, Finding, Fix


def growing_tensors(run: Run) -> Examination:
    """Find the variable that keeps plain tensors from step to step, and the line that was seen to feed it.

    What it finds
    -------------
    Tensors that survive their step without a graph: a list of outputs or batches, a cache that is never emptied, one
    tensor that is joined with the next. What each variable keeps is counted several times. One that has a maximum
    length, shrank, or stopped growing is bounded and left out; one that grows ever slower may still be filling.

    Why it matters
    --------------
    The run ends out of memory, at a step that can be told now.

    Fix
    ---
    Keep so many that they take a hundredth of the memory, or none; of a view, which keeps all of its storage, a copy.

    Predicted gain
    --------------
    The measured slope times the steps recorded: what is saved where none are kept. Where memory shows no trend, the
    bytes that were counted.
    """
    leaks = run.get(Leaks)
    found = tuple(_finding(run, leak) for leak in leaks.of_kind("tensors"))
    if not found:
        leaks.abstain_if_unclear("tensors")
    return Examination(looked_at=leaks.looked_at(), findings=found)


def _finding(run: Run, leak: Leak) -> Finding:
    copies = _copies(run, leak)
    left = sum(one.kept_rate for one in leak.kept) if copies else 0.0
    caution = "" if copies else ", all of it: what a bound goes on keeping is not saved"
    return Finding(
        blame=leak.blame,
        category="memory",
        headline=who_keeps(leak.kept),
        message=leak_message(run, leak),
        fix=copies or _bounds(run, leak),
        gain=leak_gain(run, leak, left_per_step=left, caution=caution),
        evidence=leak_evidence(run, leak),
        severity=run.get(RunLimits).severity(leak.rate.slope),
    )


def _copies(run: Run, leak: Leak) -> Fix | None:
    """Where one holder keeps small parts of large storages, by a statement that says of what."""
    main, sources = leak.kept[0], run.get(Sources)
    tree = sources.tree(leak.blame.file)
    if not (leak.is_observed and main.is_view and len(leak.kept) == 1 and tree):
        return None
    kept = kept_at(tree, leak.blame.line, main.name)
    value = tensor_in(kept, main.entry) if kept else None
    return keep_copies(leak.blame.file, sources.files[leak.blame.file], value, main.name) if value else None


def _bounds(run: Run, leak: Leak) -> Fix:
    main = leak.kept[0]
    bounds = [_bound(run, one) for one in leak.kept]
    if main.fed and main.fed[0].is_within_call:
        return end_feeding(main.path or main.name, main.type, leak.blame.text)
    return keep_fewer(bounds)


def _bound(run: Run, one: Kept) -> Bound:
    """In entries, in tensors where its length says nothing, and in steps of a tensor that grows."""
    limits, whole = run.get(RunLimits), one.rate.slope * one.num_steps
    counts = ((one.entries_added, "entries"), (one.tensors_added, "tensors"), (one.num_steps, "steps"))
    number, unit = next(pair for pair in counts if pair[0] > 0)
    return Bound(
        name=one.name,
        kind=one.type,
        most=limits.most_kept(whole / number),
        unit=unit,
        is_on_device=limits.is_device,
    )
