"""Sets arguments of the call that builds a DataLoader, in the user's source and by the name the user gave them."""

import ast
import re
import shlex
from collections.abc import Mapping, Sequence

from efprof.fixes.source_edit import set_arguments, text_of, written_arguments
from efprof.model import Change, ConfigurationValue
from efprof.units import GIB, MIB

NUM_BEFORE_WORKERS = 5
"""DataLoader(dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, ...)."""


def set_loader_arguments(
    file: str,
    lines: Sequence[str],
    tree: ast.Module | None,
    line: int,
    *,
    old: Mapping[str, object],
    new: Mapping[str, object],
) -> tuple[Change, ...]:
    """The edit of the call where its text allows one, else the settings to change, each under its name in the call.

    `old` and `new` map the arguments of DataLoader to their values.
    """
    call = _find_call(tree, line) if tree else None
    edit = set_arguments(file, lines, call, new, num_before=NUM_BEFORE_WORKERS) if call else None
    return (
        (edit,) if edit else tuple(loader_setting(file, lines, tree, line, name, old[name], new[name]) for name in new)
    )


def loader_setting(
    file: str, lines: Sequence[str], tree: ast.Module | None, line: int, name: str, old: object, new: object
) -> ConfigurationValue:
    """An argument of DataLoader, under the name that its value has in the call on that line."""
    call = _find_call(tree, line) if tree else None
    value = written_arguments(call).get(name) if call else None
    written = name if value is None or isinstance(value, ast.Constant) else text_of(lines, value)
    return ConfigurationValue(name=written, old=str(old), new=str(new), file=file)


def _find_call(tree: ast.Module, line: int) -> ast.Call | None:
    """The call of something named like a loader on that line, or of the loader's own constructor in a subclass."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.lineno == line]
    for call in calls:
        match call.func:
            case ast.Name(id=name) | ast.Attribute(attr=name) if name.endswith("Loader") or name == "__init__":
                return call
    return None


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
    is_large = budget_bytes >= 8 * GIB
    budget = f"{budget_bytes // GIB}GiB" if is_large else f"{budget_bytes // MIB}MiB"  # as the command reads it
    quoted = " ".join(word if PLACE in word and " " not in word else shlex.quote(word) for word in words)
    return f"efprof fit --budget {budget} -- {quoted}", place is not None


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
