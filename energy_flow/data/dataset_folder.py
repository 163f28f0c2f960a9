"""The dataset on disk: texts and teacher embeddings in files that are mapped, never loaded whole.

DIR/dataset.json            format version, number of pairs, source, teacher
DIR/texts.bin               all texts, UTF-8, end to end: input 0, target 0, input 1, ...
DIR/offsets.npy             where each text starts in texts.bin, and where the last one ends
DIR/input_embeddings.npy    [pairs, 768] float32
DIR/target_embeddings.npy   [pairs, 768] float32
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energy_flow.data.corpus import TextPair
from energy_flow.data.teacher import Embeddings, Teacher, TeacherSettings, build_teacher
from energy_flow.energy_config import EMBEDDING_SIZE
from energy_flow.errors import EnergyFlowError

FORMAT_VERSION = 1
_MANIFEST = "dataset.json"
_EMBED_AT_ONCE = 256  # texts; bounds what a transformers teacher holds


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What `dataset.json` says."""

    format_version: int
    num_pairs: int
    source: str
    teacher: TeacherSettings


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DatasetFiles:
    """The files of a dataset folder, mapped into memory."""

    manifest: Manifest
    text_bytes: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]  # [2 * pairs + 1]
    inputs: Embeddings  # [pairs, 768]
    targets: Embeddings  # [pairs, 768]

    def text(self, number: int) -> str:
        """Text `number`: the input of pair `number // 2` if even, its target if odd."""
        return bytes(self.text_bytes[self.offsets[number] : self.offsets[number + 1]]).decode()


def open_dataset(folder: Path) -> DatasetFiles:
    """Map the files of `folder`; EnergyFlowError names the folder when it is no dataset, or a damaged one."""
    manifest = read_manifest(folder)
    try:
        files = DatasetFiles(
            manifest=manifest,
            text_bytes=np.memmap(folder / "texts.bin", mode="r", dtype=np.uint8),
            offsets=np.load(folder / "offsets.npy", mmap_mode="r"),
            inputs=np.load(folder / "input_embeddings.npy", mmap_mode="r"),
            targets=np.load(folder / "target_embeddings.npy", mmap_mode="r"),
        )
    except (OSError, ValueError) as error:
        raise EnergyFlowError(f"the dataset in {folder} is incomplete; build it again") from error
    shape = (manifest.num_pairs, EMBEDDING_SIZE)
    has_right_shapes = files.inputs.shape == files.targets.shape == shape
    if not has_right_shapes or files.offsets.shape != (2 * manifest.num_pairs + 1,):
        raise EnergyFlowError(f"the files of the dataset in {folder} do not fit together; build it again")
    return files


def read_manifest(folder: Path) -> Manifest:
    """What the dataset in `folder` is; EnergyFlowError names the folder when it is none."""
    try:
        fields = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        manifest = Manifest(**{**fields, "teacher": TeacherSettings(**fields["teacher"])})
    except OSError as error:
        raise EnergyFlowError(f"{folder} is no dataset: it has no {_MANIFEST} that can be read") from error
    except (ValueError, TypeError, KeyError) as error:
        raise EnergyFlowError(f"{folder / _MANIFEST} is damaged; build the dataset again") from error
    if manifest.format_version != FORMAT_VERSION:
        raise EnergyFlowError(
            f"{folder} has dataset format {manifest.format_version} and this program reads {FORMAT_VERSION}; "
            "build the dataset again"
        )
    return manifest


def write_dataset(folder: Path, pairs: Sequence[TextPair], settings: TeacherSettings, source: str) -> None:
    """Embed `pairs` and write them to `folder`, which appears under its name only once it is whole.

    A dataset that was there is replaced; a folder that holds anything else is refused.
    """
    if folder.exists() and any(folder.iterdir()):
        read_manifest(folder)
    manifest = Manifest(format_version=FORMAT_VERSION, num_pairs=len(pairs), source=source, teacher=settings)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
        try:
            _write_files(building, pairs, build_teacher(settings), manifest)
            if folder.exists():
                shutil.rmtree(folder)
            building.chmod(0o755)  # mkdtemp lets nobody else in
            building.rename(folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    except OSError as error:
        raise EnergyFlowError(f"cannot write the dataset to {folder}: {error.strerror}") from error


def _write_files(folder: Path, pairs: Sequence[TextPair], teacher: Teacher, manifest: Manifest) -> None:
    encoded = [text.encode() for pair in pairs for text in pair]
    (folder / "texts.bin").write_bytes(b"".join(encoded))
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, encoded)], dtype=np.int64))
    _write_embeddings(folder / "input_embeddings.npy", [pair.input_text for pair in pairs], teacher)
    _write_embeddings(folder / "target_embeddings.npy", [pair.target_text for pair in pairs], teacher)
    (folder / _MANIFEST).write_text(json.dumps(dataclasses.asdict(manifest), indent=2), encoding="utf-8")


def _write_embeddings(file: Path, texts: Sequence[str], teacher: Teacher) -> None:
    shape = (len(texts), EMBEDDING_SIZE)
    embeddings = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=shape)
    for first in range(0, len(texts), _EMBED_AT_ONCE):
        chosen = slice(first, first + _EMBED_AT_ONCE)
        embeddings[chosen] = teacher.embed(texts[chosen])
    embeddings.flush()
