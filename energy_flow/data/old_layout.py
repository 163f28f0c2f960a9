"""Imports a dataset of the older layout: one `.pt` file with `text_pairs`, `input_embeddings`, `target_embeddings`."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from energy_flow.data.corpus import TextPair
from energy_flow.data.dataset import PairDataset
from energy_flow.data.dataset_folder import PAIRS_AT_ONCE, EmbeddedPairs, write_dataset
from energy_flow.data.teacher import Embeddings, TeacherSettings
from energy_flow.energy_config import EMBEDDING_SIZE, EnergyConfig
from energy_flow.errors import EnergyFlowError

# What reading a file with any byte of it changed was seen to raise.
_DAMAGED = (RuntimeError, ValueError, LookupError, TypeError, AttributeError, EOFError)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_TEXT_KEYS = (("input", "target"), ("input_text", "target_text"))  # of pairs that are dicts


class _OldDataset(NamedTuple):
    file: Path
    text_pairs: Sequence[Any]
    inputs: Tensor  # [pairs, 768], any floating type, any length
    targets: Tensor


def import_old_dataset(file: Path, folder: Path, config: EnergyConfig) -> PairDataset:
    """Write all pairs of `file` to the dataset `folder`, their embeddings as float32 of unit length, and open it.

    Which teacher made the embeddings is not known: words cannot be dropped from the texts of such a dataset.

    Raises:
        EnergyFlowError: naming the file and what in it is wrong; nothing in it is ever run.

    """
    old = _checked(file, _loaded(file))
    write_dataset(folder, _parts(old), TeacherSettings.unknown(), f"imported from {file.name}")
    return PairDataset(folder, config)


def _loaded(file: Path) -> object:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected pickle protocol")  # what to do about it is said below
            try:
                return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError:  # from before torch 1.6, when a file could not be mapped; or damaged
                return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise EnergyFlowError(
            f"{file} is no dataset of the older layout: it holds more than texts and tensors, and was not run"
        ) from error
    except OSError as error:
        raise EnergyFlowError(f"cannot read {file}: {error.strerror}") from error
    except _DAMAGED as error:
        raise EnergyFlowError(f"{file} is no file of torch.save, or a damaged one; make it again") from error


def _checked(file: Path, content: object) -> _OldDataset:
    fields = content if isinstance(content, Mapping) else {}
    text_pairs = fields.get("text_pairs")
    if not isinstance(text_pairs, (list, tuple)) or not text_pairs:
        raise EnergyFlowError(f"{file} has no list 'text_pairs'; give (input, target) texts under this key")
    inputs, targets = (
        _embeddings(file, name, fields.get(name), len(text_pairs)) for name in ("input_embeddings", "target_embeddings")
    )
    return _OldDataset(file, text_pairs, inputs, targets)


def _embeddings(file: Path, name: str, value: object, num_pairs: int) -> Tensor:
    if not isinstance(value, Tensor) or value.dtype not in _DTYPES:
        raise EnergyFlowError(
            f"{file} has no floating-point tensor '{name}'; give one of shape [{num_pairs}, {EMBEDDING_SIZE}]"
        )
    if value.shape != (num_pairs, EMBEDDING_SIZE):
        raise EnergyFlowError(
            f"'{name}' in {file} has the shape {list(value.shape)}; "
            f"{num_pairs} text pairs need [{num_pairs}, {EMBEDDING_SIZE}]"
        )
    return value.detach()


def _parts(old: _OldDataset) -> Iterator[EmbeddedPairs]:
    for first in range(0, len(old.text_pairs), PAIRS_AT_ONCE):
        rows = range(first, min(first + PAIRS_AT_ONCE, len(old.text_pairs)))
        yield EmbeddedPairs(
            pairs=[_pair(old.file, row, old.text_pairs[row]) for row in rows],
            inputs=_unit_length(old.file, "input_embeddings", first, old.inputs[rows.start : rows.stop]),
            targets=_unit_length(old.file, "target_embeddings", first, old.targets[rows.start : rows.stop]),
        )


def _pair(file: Path, row: int, value: object) -> TextPair:
    texts: Sequence[object] = value if isinstance(value, (list, tuple)) else ()
    if isinstance(value, Mapping):
        texts = next(([value[key] for key in keys] for keys in _TEXT_KEYS if value.keys() >= set(keys)), ())
    match texts:
        case [str(input_text), str(target_text)] if input_text.strip() and target_text.strip():
            return TextPair(input_text.strip(), target_text.strip())
    raise EnergyFlowError(
        f"text_pairs[{row}] in {file} is no pair of texts; "
        'write (input, target), {"input": ..., "target": ...} or {"input_text": ..., "target_text": ...}'
    )


def _unit_length(file: Path, name: str, first: int, rows: Tensor) -> Embeddings:
    wide = rows.double()  # in which a square of no float32 overflows or vanishes
    lengths = wide.norm(dim=1, keepdim=True)
    is_wrong = ~(torch.isfinite(lengths) & (lengths > 0)).flatten()
    if is_wrong.any():
        wrong = first + int(is_wrong.nonzero()[0])
        raise EnergyFlowError(f"{name}[{wrong}] in {file} is zero or not finite; leave that pair out")
    unit: Embeddings = (wide / lengths).float().numpy()
    return unit
