"""Settings to change: the CUDA allocator's, arguments of a DataLoader or a scaler, the batch size in a command."""

import ast
import shlex
from collections.abc import Mapping, Sequence

from efprof.fixes.source_edit import calls_on, set_arguments, text_of, written_arguments
from efprof.model import Change, ConfigurationValue, EnvironmentVariable, Fix, SourceFile, called_name
from efprof.units import GIB, MIB

NUM_BEFORE_WORKERS = 5
"""DataLoader(dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, ...)."""

SCALER = "GradScaler"
"""How the names of torch's own end, and of classes derived from it."""

VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
"""Every torch reads it; PYTORCH_ALLOC_CONF is ignored by the CUDA allocator of 2.9 (pytorch/pytorch#183387)."""


def set_loader_arguments(
    file: SourceFile, line: int, *, old: Mapping[str, object], new: Mapping[str, object]
) -> tuple[Change, ...]:
    """The edit of the call, else the settings by their names in it; `old` and `new` map DataLoader's arguments."""
    return _set(file, _find_call(file.tree, line), old, new, num_before=NUM_BEFORE_WORKERS)


def loader_setting(file: SourceFile, line: int, name: str, old: object, new: object) -> ConfigurationValue:
    """An argument of DataLoader, under the name that its value has in the call on that line."""
    return _setting(file, _find_call(file.tree, line), name, old, new)


def set_scaler_arguments(
    file: SourceFile, line: int, *, old: Mapping[str, object], new: Mapping[str, object]
) -> tuple[Change, ...]:
    """The edit of the one call that makes a scaler, else the settings."""
    calls = [call for call in calls_on(file.tree, line) if called_name(call).endswith(SCALER)]
    call = calls[0] if len(calls) == 1 else None
    first = call.args[0] if call is not None and call.args else None
    is_device = isinstance(first, ast.Constant) and isinstance(first.value, str)  # of torch.amp.GradScaler("cuda")
    return _set(file, call, old, new, num_before=int(is_device))


def _set(
    file: SourceFile, call: ast.Call | None, old: Mapping[str, object], new: Mapping[str, object], *, num_before: int
) -> tuple[Change, ...]:
    edit = set_arguments(file, call, new, num_before=num_before) if call else None
    return (edit,) if edit else tuple(_setting(file, call, name, old[name], new[name]) for name in new)


def _setting(file: SourceFile, call: ast.Call | None, name: str, old: object, new: object) -> ConfigurationValue:
    value = written_arguments(call).get(name)
    written = name if value is None or isinstance(value, ast.Constant) else text_of(file, value)
    return ConfigurationValue(name=written, old=str(old), new=str(new), file=file.name if call else None)


def prove_by_fit(command: Sequence[str], budget_bytes: int) -> str:
    """A sentence: the command that finds the size by running."""
    is_large = budget_bytes >= 8 * GIB
    budget = f"{budget_bytes // GIB}GiB" if is_large else f"{budget_bytes // MIB}MiB"  # as the command reads it
    return (
        f"`efprof fit --budget {budget} -- {shlex.join(command)}` measures the largest that fits; write `{{batch}}` "
        "where the command sets its size."
    )


def set_allocator(old: str, new: str, *, caution: str) -> Fix:
    """The numbers a program computes do not depend on it; an empty configuration is torch's default.

    The old one's limit to the program's memory stays.
    """
    new = ",".join(
        filter(None, [new, *(one for one in old.split(",") if one.startswith("per_process_memory_fraction"))])
    )
    what = f"Start the command with {VARIABLE}={new}" if new else f"Start the command without {VARIABLE}"
    change = EnvironmentVariable(name=VARIABLE, old=old or None, new=new)
    return Fix.by(change, "safe", f"{what}.{' ' + caution if caution else ''}")


def _find_call(tree: ast.Module, line: int) -> ast.Call | None:
    """The call of something named like a loader on that line, or of the loader's own constructor in a subclass."""
    return next((call for call in calls_on(tree, line) if called_name(call).endswith(("Loader", "__init__"))), None)
