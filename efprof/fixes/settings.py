"""Settings to change: the CUDA allocator's, arguments of a DataLoader or a scaler, the batch size in a command."""

import ast
import re
import shlex
from collections.abc import Mapping, Sequence

from efprof.fixes.source_edit import calls_on, set_arguments, text_of, written_arguments
from efprof.model import Change, ConfigurationValue, EnvironmentVariable, Fix, SourceFile, called_name
from efprof.units import GIB, MIB

NUM_BEFORE_WORKERS = 5
"""DataLoader(dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, ...)."""

SCALER = "GradScaler"
"""How the names of torch's own end, and of classes derived from it."""

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
    """The edit of the call, else the settings by their names in it; `old` and `new` map DataLoader's arguments."""
    call = _find_call(file.tree, line)
    edit = set_arguments(file, call, new, num_before=NUM_BEFORE_WORKERS) if call else None
    return (edit,) if edit else tuple(loader_setting(file, line, name, old[name], new[name]) for name in new)


def loader_setting(file: SourceFile, line: int, name: str, old: object, new: object) -> ConfigurationValue:
    """An argument of DataLoader, under the name that its value has in the call on that line."""
    value = written_arguments(_find_call(file.tree, line)).get(name)
    written = name if value is None or isinstance(value, ast.Constant) else text_of(file, value)
    return ConfigurationValue(name=written, old=str(old), new=str(new), file=file.name)


def set_scaler_arguments(
    file: SourceFile, line: int, *, old: Mapping[str, object], new: Mapping[str, object]
) -> tuple[Change, ...]:
    """The edit of the call that makes a scaler, else the settings, without a file where a framework makes it."""
    calls = [call for call in calls_on(file.tree, line) if called_name(call).endswith(SCALER)]
    is_plain = len(calls) == 1 and not any(isinstance(argument, ast.Starred) for argument in calls[0].args)
    num_before = int(_takes_a_device(calls[0], file.tree)) if is_plain else 0
    edit = set_arguments(file, calls[0], new, num_before=num_before) if is_plain else None
    if edit is not None:
        return (edit,)
    written = written_arguments(calls[0]) if is_plain else {}
    names = {name: text_of(file, written[name]) if name in written else name for name in new}
    where = file.name if is_plain else None
    return tuple(
        ConfigurationValue(name=names[name], old=str(old[name]), new=str(new[name]), file=where) for name in new
    )


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
    return next((call for call in calls_on(tree, line) if called_name(call).endswith(("Loader", "__init__"))), None)


def _takes_a_device(call: ast.Call, tree: ast.Module) -> bool:
    """Whether it is `torch.amp.GradScaler(device, init_scale, ...)`; that of `torch.cuda.amp` knows its device."""
    if isinstance(call.func, ast.Attribute):
        return ast.unparse(call.func.value) == "torch.amp"
    name = ast.unparse(call.func)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "torch.amp"]
    return any((alias.asname or alias.name) == name for node in imports for alias in node.names)


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
