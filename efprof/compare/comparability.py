"""What must be equal before the numbers of two runs may be compared; a branch may change everything else."""

import shlex
from pathlib import PurePath

from efprof.model import Report, RunIdentity

EQUAL_ENVIRONMENT = ("cpu", "python", "torch", "cuda")
"""The machine and the versions that set its pace, by their names in a run's environment."""


def find_differences(base: Report, head: Report) -> tuple[str, ...]:
    """Each thing that differs and must not, as `name: value in base, value in head`; empty where all is equal.

    What only a training process writes is left out for a run that ended before its first step.
    """
    pairs = _entries(base.run), _entries(head.run)
    if base.run.num_steps and head.run.num_steps:
        for entries, report in zip(pairs, (base, head), strict=True):
            entries |= _entries_of_training(report)
    names = dict.fromkeys([*pairs[0], *pairs[1]])
    missing = "none"
    differing = [(name, *(entries.get(name, missing) for entries in pairs)) for name in names]
    return tuple(f"{name}: {old} in base, {new} in head" for name, old, new in differing if old != new)


def _entries(run: RunIdentity) -> dict[str, str]:
    """What is known of a run before its program starts."""
    environment = dict(run.environment)
    place = environment.get("working folder", "")
    words = [_without_place(word, place) for word in run.command]
    variables = {name: _without_place(value, place) for name, value in environment.items() if name.isupper()}
    configuration = {f"configuration {name}": value for name, value in run.configuration}
    return {"command": shlex.join(words), **variables, **configuration}


def _entries_of_training(report: Report) -> dict[str, str]:
    environment = dict(report.run.environment)
    return {
        "devices": ", ".join(report.run.devices) or "none",
        "ranks": str(report.run.num_ranks),
        "memory read from": report.measurements.memory_source,
        **{name: environment[name] for name in EQUAL_ENVIRONMENT if name in environment},
    }


def _without_place(word: str, working_folder: str) -> str:
    """A path as seen from the working folder: two checkouts of one repository run the same command."""
    path = PurePath(word)
    if not path.is_absolute():
        return word
    is_inside = working_folder and path.is_relative_to(working_folder)
    return str(path.relative_to(working_folder)) if is_inside else path.name
