"""The user's own configuration file, as `section.key` and text."""

import importlib
import json
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from efprof.model import EfprofError
from efprof.units import KIB

MAX_BYTES = 256 * KIB
"""Of all files together, and of what is kept of them: run.json is read whole by every command."""


def read_configuration(files: Sequence[Path]) -> dict[str, str]:
    """Every value of TOML, JSON and YAML files by its key; any other file as one text under its name.

    Where there are several files, each key begins with the name of its file. Raises EfprofError for one that cannot
    be read, or is too large.
    """
    texts = {file: _text(file) for file in files}
    num_bytes = sum(len(text) for text in texts.values())
    if num_bytes > MAX_BYTES:
        names = ", ".join(str(file) for file in files)
        raise EfprofError(f"'configuration' names more than {MAX_BYTES // KIB} KiB ({names}); name smaller files.")
    found: dict[str, str] = {}
    for file, text in texts.items():
        values = _values(file, text) or {file.name: text}
        found |= values if len(files) == 1 else {f"{file.name}:{key}": value for key, value in values.items()}
    return found


def _text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES + 1).decode(errors="replace")
    except OSError as error:
        raise EfprofError(f"{file}, which 'configuration' names, cannot be read: {error.strerror}.") from None


def _values(file: Path, text: str) -> dict[str, str] | None:
    """None where the file is of no form that is known, or not what its name says."""
    content = _parsed(file.suffix.lower(), text)
    if not isinstance(content, dict):
        return None
    values: dict[str, str] = {}
    num_left = MAX_BYTES
    with suppress(RecursionError):  # an alias in YAML may hold itself
        for key, value in _flat("", content):
            num_left -= len(key) + len(value)
            if num_left < 0:
                return None  # aliases can make a short file very long
            values[key] = value
        return values
    return None


def _parsed(suffix: str, text: str) -> Any:
    try:
        if suffix == ".toml":
            return tomllib.loads(text)
        if suffix == ".json":
            return json.loads(text)
    except (ValueError, RecursionError):
        return None
    return _parsed_yaml(text) if suffix in (".yaml", ".yml") else None


def _parsed_yaml(text: str) -> Any:
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        return None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def _flat(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Tables by their keys, lists of tables by their places, anything else as it would be written."""
    is_list = isinstance(value, list) and any(isinstance(element, dict | list) for element in value)
    if is_list or (isinstance(value, dict) and value):
        for name, inner in enumerate(value) if is_list else value.items():
            yield from _flat(f"{key}.{name}" if key else str(name), inner)
    else:
        yield key, value if isinstance(value, str) else json.dumps(value, default=str)
