"""Another batch size: the setting under the name that the user's source gives it, and the command that proves it."""

import re
import shlex
from collections.abc import Sequence

from efprof.model import ConfigurationValue
from efprof.units import GIB, MIB

PLACE = "{batch}"
"""What stands for the size in a command of `efprof fit`."""
BATCH_OPTION = re.compile(r"(?:^|[-_.])(?:batch|bs|bsz)(?:$|[-_.=]|size)", re.IGNORECASE)
OTHER_LOOP = re.compile(r"eval|valid|test|infer", re.IGNORECASE)
"""Options of loops that do not train."""


def prove_by_fit(command: Sequence[str], batch: int, budget_bytes: int, change: ConfigurationValue | None) -> str:
    """A clause: the command that finds the size by running, or what it lacks; `change` is where the size stands."""
    fit, is_known = fit_command(command, batch, budget_bytes)
    if is_known:
        return f"'{fit}' measures the largest that fits"
    place = "" if change is None else f", now `{change.name}`{f' in {change.file}' if change.file else ''}"
    return (
        f"'{fit}' measures the largest that fits, with {PLACE} put where the command sets the size of a micro-batch"
        f"{place}; if nothing in it does, the program needs an option for that"
    )


def fit_command(command: Sequence[str], batch: int, budget_bytes: int) -> tuple[str, bool]:
    """`efprof fit` for a recorded command, and whether it is known where the command takes its batch size."""
    words, place = list(command), _place_of_batch(command, batch)
    if place is not None:
        name, equals, _ = words[place].partition("=")
        words[place] = f"{name}={PLACE}" if equals else PLACE
    return f"efprof fit --budget {_size(budget_bytes)} -- {_quoted(words)}", place is not None


def _place_of_batch(command: Sequence[str], batch: int) -> int | None:
    """The index of the word that holds the size: `--batch-size=16`, or what follows `--batch-size`."""
    for index, word in enumerate(command):
        name, equals, value = word.partition("=")
        if not BATCH_OPTION.search(name) or OTHER_LOOP.search(name):
            continue
        if equals and value == str(batch):
            return index
        if not equals and command[index + 1 : index + 2] == [str(batch)]:
            return index + 1
    return None


def _size(num_bytes: int) -> str:
    """Rounded down, as the command reads it."""
    return f"{num_bytes // GIB}GiB" if num_bytes >= 8 * GIB else f"{num_bytes // MIB}MiB"


def _quoted(words: Sequence[str]) -> str:
    return " ".join(word if PLACE in word and " " not in word else shlex.quote(word) for word in words)
