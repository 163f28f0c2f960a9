"""Settings to change: the CUDA allocator's, the arguments of a DataLoader, the size of a batch in a command."""

import ast
import re
import shlex
from collections.abc import Mapping, Sequence

from efprof.fixes.source_edit import end_of, replace_parts, text_of
from efprof.model import Change, CodeEdit, ConfigurationValue, EnvironmentVariable, Fix, SourceFile
from efprof.units import GIB, MIB

POSITIONAL_WITH_WORKERS = 6
"""DataLoader(dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, ...)."""

PLACE = "{batch}"
"""What stands for the size in a command of `efprof fit`."""
BATCH_OPTION = re.compile(r"(?:^|[-_.])(?:batch|bs|bsz)(?:$|[-_.=]|size)", re.IGNORECASE)
OTHER_LOOP = re.compile(r"eval|valid|test|infer", re.IGNORECASE)
"""Options of loops that do not train."""

VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
"""Every torch reads it; PYTORCH_ALLOC_CONF is ignored by the CUDA allocator of 2.9 (pytorch/pytorch#183387)."""


def set_loader_arguments(
    file: SourceFile, line: int, *, old: Mapping[str, object], new: Mapping[str, object]
) -> tuple[Change, ...]:
    """The edit of the call where its text allows one, else the settings to change, each under its name in the call.

    `old` and `new` map the arguments of DataLoader to their values.
    """
    call = _find_call(file.tree, line)
    edit = _edit_call(file, call, _written(call), new) if call else None
    return (edit,) if edit else tuple(loader_setting(file, line, name, old[name], new[name]) for name in new)


def loader_setting(file: SourceFile, line: int, name: str, old: object, new: object) -> ConfigurationValue:
    """An argument of DataLoader, under the name that its value has in the call on that line."""
    value = _written(_find_call(file.tree, line)).get(name)
    written = name if value is None or isinstance(value, ast.Constant) else text_of(file, value)
    return ConfigurationValue(name=written, old=str(old), new=str(new), file=file.name)


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


def set_allocator(old: str, new: str, *, caution: str = "") -> Fix:
    """The numbers a program computes do not depend on it; an empty configuration is torch's default."""
    what = f"Start the command with {VARIABLE}={new}" if new else f"Start the command without {VARIABLE}"
    return Fix(
        summary=f"{what}.{' ' + caution if caution else ''}",
        applicability="safe",
        changes=(EnvironmentVariable(name=VARIABLE, old=old or None, new=new),),
    )


def _find_call(tree: ast.Module, line: int) -> ast.Call | None:
    """The call of something named like a loader on that line, or of the loader's own constructor in a subclass."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.lineno == line]
    for call in calls:
        match call.func:
            case ast.Name(id=name) | ast.Attribute(attr=name) if name.endswith("Loader") or name == "__init__":
                return call
    return None


def _written(call: ast.Call | None) -> dict[str, ast.expr]:
    return {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg} if call else {}


def _edit_call(
    file: SourceFile, call: ast.Call, written: Mapping[str, ast.expr], new: Mapping[str, object]
) -> CodeEdit | None:
    """One edit of the whole call; None where an argument's value is computed, or arguments are passed on unseen."""
    absent = [name for name in new if name not in written]
    is_opaque = any(keyword.arg is None for keyword in call.keywords) or len(call.args) >= POSITIONAL_WITH_WORKERS
    if not all(isinstance(written.get(name), ast.Constant | None) for name in new) or (absent and is_opaque):
        return None
    replaced = [(written[name], str(value)) for name, value in new.items() if name in written]
    last = max((*call.args, *(keyword.value for keyword in call.keywords)), key=end_of, default=None)
    if last is None:
        return None
    added = "".join(f", {name}={new[name]}" for name in absent)
    text_of_last = next((text for value, text in replaced if value is last), text_of(file, last))
    replaced = [(value, text) for value, text in replaced if value is not last] + [(last, text_of_last + added)]
    return replace_parts(file, call, replaced)


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
