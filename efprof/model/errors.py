"""The errors efprof raises on purpose; each message is one sentence that says what to do."""


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


class ThinEvidence(EfprofError):
    """An audit abstains, saying why: too few steps, too wide an interval."""
