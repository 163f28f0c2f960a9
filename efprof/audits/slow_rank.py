"""One rank that all others wait for."""

from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.facts.time.rank_times import RankArrivals, StageTime, line_behind, rank_evidence, stage_times
from efprof.model import Examination, Finding, Fix, Gain, NothingToLookAt, SourceLine, ThinEvidence
from efprof.units import format_ms, format_share

MIN_SHARE = 0.1
"""Of the step: ranks differ by some percent on any machine, now one and now the other."""
MIN_STEPS, MIN_STEPS_ON_HOST = 3, 5
"""Of two alike ranks one is hardly late by a tenth of three steps; where the host computes, others hold it up: five."""
MOST_STEPS = 0.8
"""A rank that is late in fewer is late by chance: batches of uneven length come to each rank in turn."""
MIN_EXPLAINED = 0.3
"""Of how late it comes; a stage that accounts for less is not why, and the rank as a whole is to be looked at."""


def slow_rank(run: Run) -> Examination:
    """Find a rank that arrives late at collectives.

    ## What it finds
    A rank that all others wait for, for a tenth of the step or more and in four of five steps.

    ## Why it matters
    The training is as fast as its slowest rank.

    ## Fix
    By the stage in which it spends more than the others: its data, uneven work, or what only this rank does.

    ## Predicted gain
    What the others wait for this rank alone, until the next but last one comes.
    """
    arrivals = run.get(RankArrivals)
    num_ranks, num_steps = len(arrivals.ranks), len(arrivals.late_ns)
    if num_ranks < 2 <= len(run.rank_folders):
        raise ThinEvidence(f"of {len(run.rank_folders)} ranks the trace of one alone can be read.")
    if num_ranks < 2 or not arrivals.num_collectives:
        raise NothingToLookAt("collectives that wait for all" if num_ranks > 1 else "several ranks")
    looked_at = f"{arrivals.num_collectives} collectives of {num_ranks} ranks in {num_steps} steps"
    if num_steps < (MIN_STEPS if arrivals.is_on_device else MIN_STEPS_ON_HOST):
        more = "more of them" if run.is_foreign else "`--trace-steps 100:110`"
        rank, num = arrivals.last.most_common(1)[0]
        raise ThinEvidence(
            f"{looked_at}, of which rank {rank} came last to {num}: too few to tell a slow rank from chance; "
            f"record {more}."
        )
    late = arrivals.latest
    share = arrivals.late_ms(late) / arrivals.step_ms
    if share < MIN_SHARE or arrivals.share_of_steps(late) < MOST_STEPS:
        return Examination(looked_at=looked_at)
    times = stage_times(arrivals, late)
    worst = times[0] if times and times[0].excess_ms >= MIN_EXPLAINED * arrivals.late_ms(late) else None
    if worst is None and not arrivals.is_on_device:
        raise ThinEvidence(f"{looked_at}; rank {late} is late, but in no stage: other programs may hold it up.")
    return Examination(looked_at=looked_at, findings=(_finding(run, arrivals, late, times, worst),))


def _finding(run: Run, arrivals: RankArrivals, late: int, times: list[StageTime], worst: StageTime | None) -> Finding:
    late_ms = arrivals.late_ms(late)
    share = late_ms / arrivals.step_ms
    message = f"All others wait {format_ms(late_ms)} of each step ({format_share(share)}) for rank {late}"
    if worst is None:
        blame = SourceLine(file=f"rank {late}, in no stage more than in others")
        why = "No stage of it takes so much longer than on the others."
    else:
        blame = line_behind(worst, times, late, run.get(Sources))
        why = f"Its {worst.stage} stage takes {format_ms(worst.late_ms)} on the {worst.where}, that of the others "
        why += f"{format_ms(worst.others_ms)}."
    return Finding(
        blame=blame,
        category="time",
        headline="One rank is waited for by all others",
        message=f"{message}.",
        why=why,
        fix=Fix.by_hand(_advice(late, worst)),
        gain=Gain.of_step("the median step's wait for this rank alone", min(late_ms, arrivals.steady_ms)),
        evidence=rank_evidence(arrivals, late, times),
    )


def _advice(late: int, worst: StageTime | None) -> str:
    if worst is None:
        return f"Look at the machine of rank {late}: its clock rates, its network, and what else runs on it."
    if worst.stage == "data":
        return f"Make the batches of rank {late} as fast as the others': the same workers, disk and size of samples."
    if worst.stage in ("forward", "backward") or worst.where == "device":
        return f"Give all ranks the same work; where it is even, look at the clock rates and load of rank {late}."
    return f"What rank {late} does alone there (logging, saving, evaluation), do less often, or in a thread of its own."
