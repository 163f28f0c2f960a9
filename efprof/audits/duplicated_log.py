"""Log records that handlers write to one stream or file more than once."""

from efprof.facts.run.logs import Logged, logged
from efprof.facts.run.run import Run
from efprof.facts.source.sources import line_at, place_of
from efprof.model import Examination, Finding, Fix, Gain, Narrative
from efprof.units import format_count

MIN_DOUBLED = 3
"""Fewer may come while the program sets up its log."""
MIN_MANY, MANY_SHARE = 20, 0.5
"""Of all records: such a log is hard to read, and twice as large."""


def duplicated_log(run: Run) -> Examination:
    """Find log records that are written twice to the same place.

    ## What it finds
    A record of Python's `logging` that was written to one stream or file more than once: a handler that is added
    twice, or in a function that is called again, or to a logger whose parent writes to the same stream.

    ## Why it matters
    The log is twice as long or longer, and each line seems to happen twice.

    ## Fix
    Add the handler once, or set `propagate = False` on the logger that has its own.

    ## Predicted gain
    No time and no memory: a log that can be read.
    """
    seen = logged(run)
    blamed = next(iter(seen.added), seen.site)
    is_fault = seen.num_doubled >= MIN_DOUBLED and blamed is not None
    return Examination(
        looked_at=format_count(seen.num_records, "log record"),
        findings=(_finding(run, seen, blamed),) if is_fault and blamed else (),
    )


def _finding(run: Run, seen: Logged, blamed: str) -> Finding:
    is_many = seen.num_doubled >= MIN_MANY and seen.num_doubled > MANY_SHARE * seen.num_records
    where = f"; most are logged at {place_of(seen.site)}" if seen.site and seen.added else ""
    return Finding(
        blame=line_at(run, blamed),
        category="time",
        headline="Log records are written twice",
        message=f"{seen.num_doubled:,} of {format_count(seen.num_records, 'log record')} were written to one stream or "
        "file more than once.",
        why=f"{_cause(seen)}{where}.",
        fix=Fix.by_hand(
            "Add the handler once (`if not logger.handlers`), or set `propagate = False` on a logger that has its own."
        ),
        gain=Gain.none("no time and no memory; a log that says each thing once"),
        evidence=(
            Narrative.of(
                "The same record came to two handlers that write to the same stream, or to a file of the same name, "
                "after their filters."
            ),
        ),
        severity="medium" if is_many else "low",
    )


def _cause(seen: Logged) -> str:
    if not seen.added:
        return "This line logs most of them"
    if len(seen.added) == 1:
        return "This line has added more than one handler for it"
    return f"This line adds a handler for what {place_of(seen.added[1])} has added one for"
