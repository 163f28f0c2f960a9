"""Data workers that each copy what the data set holds in Python objects."""

from efprof.facts.input.worker_memory import WorkerMemory
from efprof.facts.run.run import Run
from efprof.model import Examination, Finding, Fix, Gain, ThinEvidence, severity_by_share
from efprof.units import MIB, format_bytes, format_count

MIN_UNEXPLAINED = 128 * MIB
"""Copied by each of several workers with no container of the data set to explain it; a collection of Python's garbage
in a worker copies the pages of all containers of the interpreter, some 50 MiB."""


def worker_memory(run: Run) -> Examination:
    """Find data workers whose private memory grows by what the data set holds in Python objects.

    ## What it finds
    A data set of many Python objects that forked workers read: reading an object writes its reference count, so that
    the system copies the page it lies in, for each worker.

    ## Why it matters
    Host memory grows to the size of the data set times the number of workers, until the system kills a process.

    ## Fix
    Keep it in one array, whose entries have no reference counts, or read each item when it is asked for.

    ## Predicted gain
    None of the peak of allocated memory; what the workers were measured to have copied is told.
    """
    memory = run.get(WorkerMemory)
    copied, held = memory.copied_bytes, memory.object_bytes
    looked_at = (
        f"{format_count(len(memory.workers), 'data worker')}, each of which copied {format_bytes(copied)}; "
        f"their data set holds {format_bytes(held)} in Python objects"
    )
    if memory.data_set.start_method != "fork":
        method = memory.data_set.start_method
        raise ThinEvidence(f"the workers were started by '{method}': each has a copy of the data set from its start.")
    if memory.copied_container:
        return Examination(looked_at=looked_at, findings=(_finding(run, memory),))
    if copied >= MIN_UNEXPLAINED and len(memory.workers) > 1:
        raise ThinEvidence(f"{looked_at}: look for what they read that is none of its attributes, as a global list.")
    return Examination(looked_at=looked_at)


def _finding(run: Run, memory: WorkerMemory) -> Finding:
    copied, num_workers, held = memory.copied_bytes, len(memory.workers), memory.copied_container
    assert held is not None
    all_bytes, host = format_bytes(num_workers * copied), run.run_file.host
    share = num_workers * max(copied, memory.object_bytes) / host.total_bytes if host and host.total_bytes else 0.0
    what = f"the {held.type} of {held.length:,} `{held.element_type}` objects `{held.path}`"
    return Finding(
        blame=memory.blame(run),
        category="memory",
        headline=f"Each data worker copies `{held.path}`",
        message=f"{num_workers} data workers have copied {all_bytes} of the data set by step {memory.last_step:,}, "
        f"{format_bytes(copied)} each.",
        why=f"Reading an object writes its reference count, which copies its page: {what}.",
        fix=Fix.by_hand(
            f"Keep in `{held.path.rpartition('.')[2]}` what its entries hold in arrays, one per field (NumPy), "
            "texts as their bytes and offsets, or read each item in `__getitem__`."
        ),
        gain=Gain.none(
            f"{all_bytes} of host memory: what {num_workers} workers had copied by step {memory.last_step:,}"
        ),
        evidence=memory.evidence(),
        severity=severity_by_share(share),
    )
