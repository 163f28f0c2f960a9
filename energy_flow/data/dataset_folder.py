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
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from energy_flow.data.corpus import TextPair
from energy_flow.data.teacher import Embeddings, TeacherSettings, build_teacher
from energy_flow.energy_config import EMBEDDING_SIZE
from energy_flow.errors import EnergyFlowError

FORMAT_VERSION = 1
_MANIFEST = "dataset.json"
_FILES = {_MANIFEST, "texts.bin", "offsets.npy", "input_embeddings.npy", "target_embeddings.npy"}
PAIRS_AT_ONCE = 256  # bounds what writing holds, and what a transformers teacher does


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


class EmbeddedPairs(NamedTuple):
    """Some pairs on their way into a dataset."""

    pairs: Sequence[TextPair]
    inputs: Embeddings  # [pairs, 768], unit length
    targets: Embeddings  # [pairs, 768], unit length


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
    has_embeddings = files.inputs.shape == files.targets.shape == shape
    has_offsets = files.offsets.shape == (2 * manifest.num_pairs + 1,)
    if not has_embeddings or not has_offsets or files.offsets[-1] != len(files.text_bytes):
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


def write_dataset(folder: Path, parts: Iterable[EmbeddedPairs], teacher: TeacherSettings, source: str) -> None:
    """Write the pairs to `folder`, which appears under its name only once it is whole; one part is held at a time.

    A dataset that was there is replaced, a damaged one too; a folder that holds anything else is refused.
    """
    place = folder.resolve()  # through a link, to the disk that the user has chosen
    try:
        _refuse_other_files(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name}-"))
        try:
            num_pairs = _write_files(building, parts)
            manifest = Manifest(format_version=FORMAT_VERSION, num_pairs=num_pairs, source=source, teacher=teacher)
            (building / _MANIFEST).write_text(json.dumps(dataclasses.asdict(manifest), indent=2), encoding="utf-8")
            if place.exists():
                shutil.rmtree(place)
            building.chmod(0o755)  # mkdtemp lets nobody else in
            building.rename(place)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    except OSError as error:
        raise EnergyFlowError(f"cannot write the dataset to {folder}: {error.strerror}") from error


def embedded(pairs: Iterable[TextPair], settings: TeacherSettings) -> Iterator[EmbeddedPairs]:
    """The pairs with the embeddings that the teacher gives them, in parts of bounded size."""
    teacher = build_teacher(settings)
    rest = iter(pairs)
    while part := list(islice(rest, PAIRS_AT_ONCE)):
        yield EmbeddedPairs(
            pairs=part,
            inputs=teacher.embed([pair.input_text for pair in part]),
            targets=teacher.embed([pair.target_text for pair in part]),
        )


def _refuse_other_files(folder: Path) -> None:
    """Refuse a folder that building would remove more with than a dataset; a manifest alone may be anybody's."""
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if names and not {_MANIFEST} < names <= _FILES:
        raise EnergyFlowError(f"{folder} is no dataset, and would be replaced by one; name a new folder")


def _write_files(folder: Path, parts: Iterable[EmbeddedPairs]) -> int:
    """Write texts and embeddings part by part; return the number of pairs."""
    num_pairs = 0
    with (
        (folder / "texts.bin").open("wb") as texts,
        _GrowingArray(folder / "offsets.npy", np.int64) as offsets,
        _GrowingArray(folder / "input_embeddings.npy", np.float32, EMBEDDING_SIZE) as inputs,
        _GrowingArray(folder / "target_embeddings.npy", np.float32, EMBEDDING_SIZE) as targets,
    ):
        offsets.append(np.zeros(1, dtype=np.int64))
        for part in parts:
            encoded = [text.encode() for pair in part.pairs for text in pair]
            offsets.append(texts.tell() + np.cumsum([len(text) for text in encoded], dtype=np.int64))
            texts.write(b"".join(encoded))
            inputs.append(part.inputs)
            targets.append(part.targets)
            num_pairs += len(part.pairs)
    return num_pairs


class _GrowingArray:
    """An `.npy` file that rows are appended to; how many they are stands in it once it is closed."""

    def __init__(self, file: Path, dtype: type[np.generic], *row_shape: int) -> None:
        self._dtype, self._row_shape = np.dtype(dtype), row_shape
        self._stream = file.open("wb")
        self._num_rows = 0
        self._write_header()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._stream:
            self._stream.seek(0)
            self._write_header()

    def append(self, rows: npt.NDArray[np.generic]) -> None:
        assert rows.shape[1:] == self._row_shape
        self._stream.write(np.ascontiguousarray(rows, dtype=self._dtype).data)
        self._num_rows += len(rows)

    def _write_header(self) -> None:
        # NumPy pads the header so that its length is the same whatever the number of rows is.
        shape = (self._num_rows, *self._row_shape)
        descr = np.lib.format.dtype_to_descr(self._dtype)
        np.lib.format.write_array_header_1_0(self._stream, {"descr": descr, "fortran_order": False, "shape": shape})
