"""efprof.toml, or [tool.efprof] in pyproject.toml: what a project wants recorded; and its own configuration files."""

import importlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec

from efprof.model import EfprofError, nearest_to
from efprof.units import KIB

SETTINGS_FILE = "efprof.toml"
PROJECT_FILE = "pyproject.toml"

WINDOWED = ("trace_steps", "memory_steps", "triggers")
"""What `windows = "none"` turns off together."""

Words = str | list[str]

MAX_BYTES = 256 * KIB
"""Of all files together, and of what is kept of each: run.json is read whole by every command."""


class RecordSettings(msgspec.Struct, kw_only=True, frozen=True, rename={"keeps_diff": "diff"}):
    """[record]: the options of `efprof record` in their own words; None where the file says nothing."""

    name: str | None = None
    windows: str | None = None
    trace_steps: Words | None = None
    memory_steps: Words | None = None
    triggers: Words | None = None
    host_memory: bool | None = None
    holders: bool | None = None
    memory_ring: bool | None = None
    overhead: str | None = None
    keeps_diff: bool | None = None


Percent = Annotated[float, msgspec.Meta(ge=0)]


class GateSettings(msgspec.Struct, kw_only=True, frozen=True):
    """[gate]: by how many percent `efprof compare` lets each metric get worse, and whether an unclear one fails."""

    budget: dict[str, Percent] = {}
    strict: bool = False


class _Content(msgspec.Struct, kw_only=True, frozen=True):
    record: RecordSettings = RecordSettings()
    gate: GateSettings = GateSettings()
    configuration: Words = []


class Settings(msgspec.Struct, kw_only=True, frozen=True):
    """`file` is where they were read, None where there is none; `configuration` names the project's own files."""

    file: Path | None = None
    record: RecordSettings = RecordSettings()
    gate: GateSettings = GateSettings()
    configuration: tuple[Path, ...] = ()


def read_settings(folder: Path) -> Settings:
    """Those of the nearest folder from `folder` upwards that has any; raises EfprofError naming what is wrong."""
    for place in (folder, *folder.parents):
        for name in (SETTINGS_FILE, PROJECT_FILE):
            content = _read(place / name)
            if content is not None:
                return _checked(place / name, content)
    return Settings()


def merge(settings: RecordSettings, flags: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for, by option: `flags` win, those that are None were not given."""
    given = {name: value for name, value in flags.items() if value is not None}
    found = {name: value for name, value in msgspec.structs.asdict(settings).items() if value is not None}
    wanted = {name: ",".join(value) if isinstance(value, list) else value for name, value in found.items()}
    if "windows" in given:
        wanted = {name: value for name, value in wanted.items() if name not in WINDOWED}
    elif wanted.get("windows") == "none":
        wanted = {**wanted, **dict.fromkeys(WINDOWED, "none"), "windows": "default"}
    return wanted | given


def read_configuration(files: Sequence[Path]) -> dict[str, str]:
    """Every value of TOML, JSON and YAML files by its key; any other file as one text under its name.

    Where there are several files, each key begins with the name of its file. Raises EfprofError for one that cannot
    be read, or is too large.
    """
    texts = {file: _text(file) for file in files}
    if sum(map(len, texts.values())) > MAX_BYTES:
        names = ", ".join(str(file) for file in files)
        raise EfprofError(f"'configuration' names more than {MAX_BYTES // KIB} KiB ({names}); name smaller files.")
    found: dict[str, str] = {}
    for file, text in texts.items():
        values = _values(file, text) or {file.name: text}
        found |= values if len(files) == 1 else {f"{file.name}:{key}": value for key, value in values.items()}
    return found


def _read(path: Path) -> dict[str, Any] | None:
    """Our table of the file; None where there is no file, or none of ours in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise EfprofError(f"{path} cannot be read: {reason}.") from None
    if path.name == PROJECT_FILE and "efprof" not in text:
        return None  # whatever else is wrong with it is no business of ours
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise EfprofError(f"{path} is not valid TOML: {error}.") from None
    if path.name == SETTINGS_FILE:
        return content
    tools = content.get("tool")
    ours = tools.get("efprof") if isinstance(tools, dict) else None
    return ours if isinstance(ours, dict) else None


def _checked(path: Path, content: dict[str, Any]) -> Settings:
    _refuse_unknown(path, "", content, _Content)
    for section, kind in (("record", RecordSettings), ("gate", GateSettings)):
        table = content.get(section)
        if isinstance(table, dict):
            _refuse_unknown(path, f"{section}.", table, kind)
    try:
        read = msgspec.convert(content, type=_Content)
    except msgspec.ValidationError as error:
        why, _, place = str(error).replace(" | null", "").partition(" - at `$.")
        raise EfprofError(f"{path}: '{place.removesuffix('`')}' is wrong: {why[0].lower()}{why[1:]}.") from None
    configuration = _files(path, read.configuration)
    return Settings(file=path, record=read.record, gate=read.gate, configuration=configuration)


def _refuse_unknown(path: Path, section: str, table: Mapping[str, Any], kind: type[msgspec.Struct]) -> None:
    known = sorted(field.encode_name for field in msgspec.structs.fields(kind))
    for key in table:
        if key not in known:
            raise EfprofError(f"{path}: there is no setting '{section}{key}'; {nearest_to(key, known)}")


def _files(path: Path, names: Words) -> tuple[Path, ...]:
    """Those that `configuration` names, from where the settings lie."""
    files = tuple(path.parent / name for name in ([names] if isinstance(names, str) else names))
    for file in files:
        if not file.is_file():
            raise EfprofError(f"{path}: 'configuration' names {file}, which is not a file.")
    return files


def _text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_BYTES + 1).decode(errors="replace")
    except OSError as error:
        raise EfprofError(f"{file}, which 'configuration' names, cannot be read: {error.strerror}.") from None


def _values(file: Path, text: str) -> dict[str, str]:
    """None where the file is of no form that is known, not what its name says, or makes more than `MAX_BYTES`."""
    values, num_bytes = dict[str, str](), 0
    with suppress(RecursionError):  # of deep nesting, and of an alias in YAML that holds itself
        content = _parsed(file.suffix.lower(), text)
        for key, value in _flat("", content) if isinstance(content, dict) else ():
            num_bytes += len(key) + len(value)
            if num_bytes > MAX_BYTES:
                return {}  # by aliases in YAML, of which each may stand for several others
            values[key] = value
        return values
    return {}


def _parsed(suffix: str, text: str) -> Any:
    with suppress(ValueError, ImportError, RecursionError):
        if suffix == ".toml":
            return tomllib.loads(text)
        if suffix == ".json":
            return json.loads(text)
        if suffix in (".yaml", ".yml"):
            yaml = importlib.import_module("yaml")
            with suppress(yaml.YAMLError):
                return yaml.safe_load(text)
    return None


def _flat(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Tables by their keys, lists of tables by their places, anything else as it would be written."""
    is_list = isinstance(value, list) and any(isinstance(element, dict | list) for element in value)
    if is_list or (isinstance(value, dict) and value):
        for name, inner in enumerate(value) if is_list else value.items():
            yield from _flat(f"{key}.{name}" if key else str(name), inner)
    else:
        yield key, value if isinstance(value, str) else json.dumps(value, default=str)
