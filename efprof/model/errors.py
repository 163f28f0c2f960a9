"""The errors efprof raises on purpose; each message is one sentence that says what to do."""

import difflib
import traceback
from collections.abc import Collection

CUDA_DEVICE = "a CUDA device"
NEEDS = "Needs "
"""How the reason begins of every check that had nothing to look at; those of the same need are told together."""


class EfprofError(Exception):
    """Anything a user can mend: its message names the file or option and what to do."""

    exit_code = 2


class UnreadableInput(EfprofError):
    """A file or folder that is missing, truncated, foreign or from a newer efprof."""


class NotComparable(EfprofError):
    """Two runs that differ in what must be equal before their numbers may be compared."""

    exit_code = 4


class NotRecorded(EfprofError):
    """A fact needs something this run does not hold; the runner turns it into `not_applicable`."""


class NothingToLookAt(NotRecorded):
    """The run has nothing of the kind that a check looks at; `what` names it: `a CUDA device`."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{NEEDS}{what}.")


class ThinEvidence(EfprofError):
    """An audit abstains, saying why: too few steps, too wide an interval."""


def with_place(error: Exception) -> str:
    """An error that nobody foresaw with the place it came from, for a report to its author."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({innermost.filename}:{innermost.lineno})"


def nearest_to(name: str, known: Collection[str], otherwise: str = "") -> str:
    """`did you mean 'step_ms'?` for a name that is not among those known; where none is near, all of them, or that."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean '{near[0]}'?" if near else otherwise or f"there are {', '.join(known) or 'none'}."
