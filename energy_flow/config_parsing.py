"""Settings from the command line and from TOML files, held to the types and ranges in `energy_config.py`."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from energy_flow.energy_config import NAMED_CONFIGS, EnergyConfig, Range
from energy_flow.errors import EnergyFlowError

_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def load_config(name: str, *, config_file: Path | None = None, assignments: Iterable[str] = ()) -> EnergyConfig:
    """The named configuration, then the file's fields over it, then the `section.field=value` assignments.

    Raises:
        EnergyFlowError: naming the wrong name, field or value, and the nearest right one.

    """
    if name not in NAMED_CONFIGS:
        raise EnergyFlowError(f"there is no configuration '{name}'; {_nearest(name, NAMED_CONFIGS)}")
    config = NAMED_CONFIGS[name]
    if config_file is not None:
        for path, value in _fields_of_file(config_file):
            config = with_field(config, path, value)
    for assignment in assignments:
        path, separator, text = assignment.partition("=")
        if not separator:
            raise EnergyFlowError(f"'{assignment}' is not of the form section.field=value, as lattice.width=8")
        config = with_field(config, path.strip(), text.strip())
    _check_together(config)
    return config


def with_field(config: EnergyConfig, path: str, value: object) -> EnergyConfig:
    """`config` with the field at `path` (`section.field`) set to `value`, given as text or already typed."""
    known = field_types()
    if path not in known:
        raise EnergyFlowError(f"there is no setting '{path}'; {_nearest(path, known)}")
    section_name, _, field_name = path.partition(".")
    section: Any = getattr(config, section_name)
    changed = dataclasses.replace(section, **{field_name: _parse(path, known[path], value)})
    return dataclasses.replace(config, **{section_name: changed})


def field_types() -> dict[str, Any]:
    """`section.field` of every setting, with its annotated type."""
    return {
        f"{section_name}.{field_name}": field_type
        for section_name, section in get_type_hints(EnergyConfig).items()
        if dataclasses.is_dataclass(section)
        for field_name, field_type in get_type_hints(section, include_extras=True).items()
    }


def _fields_of_file(file: Path) -> list[tuple[str, object]]:
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise EnergyFlowError(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise EnergyFlowError(f"{file} is not a TOML file: {error}") from error
    fields: list[tuple[str, object]] = []
    for section_name, section in tables.items():
        if not isinstance(section, Mapping):
            raise EnergyFlowError(
                f"'{section_name}' in {file} stands outside a section; {_nearest(section_name, field_types())}"
            )
        fields.extend((f"{section_name}.{field_name}", value) for field_name, value in section.items())
    return fields


def _parse(path: str, annotation: Any, value: object) -> object:
    allowed = Range()
    if get_origin(annotation) is Annotated:
        annotation, allowed = get_args(annotation)
    if get_origin(annotation) is Literal:
        choices = get_args(annotation)
        if value not in choices:
            raise EnergyFlowError(f"{path} cannot be '{value}'; {_nearest(str(value), choices)}")
        return value
    if annotation is bool:
        return _parse_truth(path, value)
    if annotation is str:
        return str(value)
    return _parse_number(path, annotation, allowed, value)


def _parse_truth(path: str, value: object) -> bool:
    truth = _TRUTHS.get(str(value).lower())
    if truth is None:
        raise EnergyFlowError(f"{path} must be true or false, not '{value}'")
    return truth


def _parse_number(path: str, kind: type[int] | type[float], allowed: Range, value: object) -> float:
    described = "a whole number" if kind is int else "a number"
    number = math.nan
    if isinstance(value, (str, int, float)) and not (isinstance(value, float) and kind is int):
        with contextlib.suppress(ValueError):
            number = math.nan if isinstance(value, bool) else kind(value)
    if not -sys.maxsize <= number <= sys.maxsize:  # nor where it is NaN
        raise EnergyFlowError(f"{path} must be {described}, not '{value}'")
    if allowed.lowest is not None and number < allowed.lowest:
        raise EnergyFlowError(f"{path} must be at least {allowed.lowest}, not {number}")
    if allowed.highest is not None and number > allowed.highest:
        raise EnergyFlowError(f"{path} must be at most {allowed.highest}, not {number}")
    return number


def _check_together(config: EnergyConfig) -> None:
    """Refuse settings that are each in range and impossible together."""
    flow, depth, bridge, data = config.flow, config.lattice.depth, config.bridge, config.data
    if flow.min_advance > flow.max_advance:
        raise EnergyFlowError(
            f"flow.min_advance={flow.min_advance} is above flow.max_advance={flow.max_advance}; lower it"
        )
    if flow.max_steps * flow.max_advance < depth - 1:
        raise EnergyFlowError(
            f"no flow can cross lattice.depth={depth} in flow.max_steps={flow.max_steps} steps of at most "
            f"flow.max_advance={flow.max_advance} cells; raise flow.max_steps"
        )
    if bridge.model_size % bridge.num_heads:
        raise EnergyFlowError(
            f"bridge.model_size={bridge.model_size} is not a multiple of bridge.num_heads={bridge.num_heads}"
        )
    if data.shortest_ngram > data.longest_ngram:
        raise EnergyFlowError(
            f"data.shortest_ngram={data.shortest_ngram} is above data.longest_ngram={data.longest_ngram}"
        )
    if config.optimizer.high_gradient_norm > config.optimizer.critical_gradient_norm:
        raise EnergyFlowError(
            f"optimizer.high_gradient_norm={config.optimizer.high_gradient_norm} is above "
            f"optimizer.critical_gradient_norm={config.optimizer.critical_gradient_norm}; lower it"
        )
    if config.scaler.init_scale < config.scaler.lowest_scale:
        raise EnergyFlowError(
            f"scaler.init_scale={config.scaler.init_scale} is below "
            f"scaler.lowest_scale={config.scaler.lowest_scale}; raise it"
        )
    if data.teacher == "transformers" and not data.teacher_path:
        raise EnergyFlowError("data.teacher=transformers needs data.teacher_path, the folder of the model")


def _nearest(wrong: str, right: Iterable[str]) -> str:
    """The right spelling nearest to `wrong`; a bare field name is looked for behind every section."""
    names = list(right)
    by_last_part = {name.rpartition(".")[2]: name for name in names}
    close = difflib.get_close_matches(wrong, names, n=1, cutoff=0.6)
    if not close:
        close_parts = difflib.get_close_matches(wrong.rpartition(".")[2], by_last_part, n=1, cutoff=0.6)
        close = [by_last_part[part] for part in close_parts]
    return f"did you mean '{close[0]}'?" if close else f"choose one of {', '.join(sorted(names))}"
