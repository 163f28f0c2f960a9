"""More threads ready to run than there are cores."""

from efprof.facts.run.run import Run
from efprof.facts.source.sources import file_of, line_at
from efprof.facts.steps.ready_threads import ReadyThreads
from efprof.facts.steps.step_times import StepTimes
from efprof.fixes.source_edit import calls_on, replace_expression
from efprof.model import EnvironmentVariable, Examination, Finding, Fix, Gain, SourceLine, ThinEvidence, called_name
from efprof.units import format_share

MIN_CROWDING = 1.25
"""Ready threads per core. Measured on two: up to 1.3 with one thread an operation, with two 1.3 to 2.1, and slower."""
VARIABLE = "OMP_NUM_THREADS"
ORDER = "sums are taken in another order"


def thread_oversubscription(run: Run) -> Examination:
    """Find training whose own threads wait for each other's cores.

    ## What it finds
    Ranks of one machine, with their data workers, that together have a quarter more threads ready to run than cores,
    where torch cuts an operation into more threads than each rank's share.

    ## Why it matters
    An operation is over when the last of its threads is; the others spin until that one gets a core again.

    ## Fix
    As many threads for each rank as there are cores for it, without those of busy data workers.

    ## Predicted gain
    None is predicted: threads that spin look like threads that work.
    """
    found = run.get(ReadyThreads)
    cores, threads = found.ranks[0].num_cores, max(rank.num_threads for rank in found.ranks)
    ready, children = found.per_core("ready"), found.per_core("children")
    looked_at = f"{ready * cores:.1f} threads that were ready to run at a time, on {cores} cores"
    fitting = max(1, (cores - round(children * cores)) // len(found.ranks))
    if min(ready, found.per_core("num_threads") + children) < MIN_CROWDING or fitting >= threads:
        return Examination(looked_at=looked_at)
    site = next((rank.site for rank in found.ranks if rank.site), run.get(StepTimes).backward_site)
    if site is None:
        raise ThinEvidence(f"{looked_at}, but no line of the step is known.")
    waiting = format_share(found.per_core("waiting") / ready)
    message = f"{ready * cores:.1f} threads share {cores} cores, and wait for one {waiting} of the time."
    who = f"{len(found.ranks)} processes cut" if len(found.ranks) > 1 else "One process cuts"
    why = f"{who} each operation into {threads} threads."
    return Examination(looked_at=looked_at, findings=(_finding(run, site, message, why, fitting),))


def _finding(run: Run, site: str, message: str, why: str, fitting: int) -> Finding:
    blame = line_at(run, site)
    return Finding(
        blame=blame,
        category="time",
        headline="More threads than cores",
        message=message,
        why=why,
        fix=_fix(run, blame, fitting),
        gain=Gain.none("none is predicted: threads that spin look like threads that work; change it and compare"),
        severity="medium",
    )


def _fix(run: Run, blame: SourceLine, fitting: int) -> Fix:
    """In the call that sets the threads, else by the variable."""
    file, summary = file_of(run, blame), f"Give each process {fitting} of torch's threads: "
    for call in calls_on(file.tree, blame.line):
        if called_name(call) == "set_num_threads" and call.args:
            edit = replace_expression(file, call.args[0], str(fitting))
            return Fix.by(edit, "review", f"{summary}torch.set_num_threads({fitting}).", ORDER)
    variable = EnvironmentVariable(name=VARIABLE, old=run.run_file.environment.get(VARIABLE), new=str(fitting))
    return Fix.by(variable, "review", f"{summary}start the command with {VARIABLE}={fitting}.", ORDER)
