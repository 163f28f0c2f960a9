"""A variable that keeps more tensors after every step, none of them with a graph."""

from functools import partial

from efprof.facts.growth.leaks import Leak, Leaks, leak_finding, most_to_keep
from efprof.facts.run.run import Run
from efprof.facts.run.run_limits import RunLimits
from efprof.facts.source.sources import file_of
from efprof.fixes.keep_less import end_feeding, keep_copies, keep_fewer, kept_at, tensor_in
from efprof.model import Examination, Finding


def growing_tensors(run: Run) -> Examination:
    """Find the variable that keeps plain tensors from step to step, and the line that was seen to feed it.

    ## What it finds
    Tensors that survive their step without a graph: a list of outputs or batches, a cache that is never emptied, one
    tensor that is joined with the next. What each variable keeps is counted several times. One that has a maximum
    length, shrank, or stopped growing is bounded and left out; one that grows ever slower may still be filling.

    ## Why it matters
    The run ends out of memory, at a step that can be told now.

    ## Fix
    Keep so many that they take a hundredth of the memory, or none; of a view, which keeps all of its storage, a copy.

    ## Predicted gain
    The measured slope times the steps recorded: what is saved where none are kept. Where memory shows no trend, the
    bytes that were counted.
    """
    return run.get(Leaks).examine("tensors", partial(_finding, run))


def _finding(run: Run, leak: Leak) -> Finding:
    """With copies where one holder keeps small parts of large storages."""
    main, file = leak.kept[0], file_of(run, leak.blame)
    if main.is_fed_by_library:
        fix = end_feeding(main.path or main.name, main.type, leak.blame.text)
        return leak_finding(run, leak, fix)
    if leak.is_observed and main.is_view and len(leak.kept) == 1:
        kept = kept_at(file, leak.blame.line, main.name)
        fix = keep_copies(file, tensor_in(kept, main.entry) if kept else None, main.name)
        return leak_finding(run, leak, fix, left_per_step=main.value_rate)
    fix = keep_fewer(
        [one.name for one in leak.kept],
        main.type,
        *most_to_keep(run, leak),
        are_numbers=main.are_numbers,
        is_device=run.get(RunLimits).is_device,
    )
    return leak_finding(run, leak, fix)
