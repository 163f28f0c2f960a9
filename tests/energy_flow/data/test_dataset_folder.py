import json
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from energy_flow.data.corpus import TextPair
from energy_flow.data.dataset import PairDataset
from energy_flow.data.dataset_folder import PAIRS_AT_ONCE, EmbeddedPairs, embedded, open_dataset, write_dataset
from energy_flow.data.teacher import TeacherSettings, build_teacher
from energy_flow.energy_config import EnergyConfig

TEACHER = TeacherSettings(kind="ngram", path="", shortest_ngram=3, longest_ngram=3)
STATM = Path("/proc/self/statm")


def _pairs(number: int) -> Iterator[TextPair]:
    return (TextPair(f"Käfer {index}", "x" * (index % 5 + 1)) for index in range(number))


def _memory_bytes() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _write_sparse_array(file: Path, shape: tuple[int, ...]) -> None:
    with file.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
        stream.truncate(stream.tell() + 4 * int(np.prod(shape)))


def _write_sparse_dataset(folder: Path, num_pairs: int) -> None:
    """A dataset of zeros, of any size and of hardly a block on the disk."""
    write_dataset(folder, embedded(_pairs(1), TEACHER), TEACHER, "zeros")
    manifest = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(json.dumps({**manifest, "num_pairs": num_pairs}))
    np.save(folder / "offsets.npy", np.arange(2 * num_pairs + 1) * 8)
    os.truncate(folder / "texts.bin", 2 * num_pairs * 8)
    for name in ("input_embeddings.npy", "target_embeddings.npy"):
        _write_sparse_array(folder / name, (num_pairs, 768))


@pytest.mark.parametrize("number", [1, PAIRS_AT_ONCE, 2 * PAIRS_AT_ONCE + 1])
def test_pairs_written_in_parts_are_read_back_as_one_dataset(tmp_path: Path, number: int) -> None:
    write_dataset(tmp_path / "data", embedded(_pairs(number), TEACHER), TEACHER, "made")
    files, pairs = open_dataset(tmp_path / "data"), list(_pairs(number))
    assert [files.text(place) for place in range(2 * number)] == [text for pair in pairs for text in pair]
    teacher = build_teacher(TEACHER)
    assert np.array_equal(files.inputs, teacher.embed([pair.input_text for pair in pairs]))
    assert np.array_equal(files.targets, teacher.embed([pair.target_text for pair in pairs]))
    assert (files.manifest.num_pairs, files.manifest.source) == (number, "made")


def test_no_part_is_held_longer_than_it_is_written_or_embedded_before_it_is_asked_for(tmp_path: Path) -> None:
    written: list[weakref.ref[np.ndarray]] = []
    most_held = 0

    def parts() -> Iterator[EmbeddedPairs]:
        nonlocal most_held
        for _ in range(8):
            part = EmbeddedPairs([TextPair("a", "b")], np.ones((1, 768), np.float32), np.ones((1, 768), np.float32))
            written.append(weakref.ref(part.inputs))
            most_held = max(most_held, sum(reference() is not None for reference in written))
            yield part
            del part

    write_dataset(tmp_path / "data", parts(), TEACHER, "made")
    assert most_held <= 2
    pairs = _pairs(5 * PAIRS_AT_ONCE)
    parts = embedded(pairs, TEACHER)
    assert len(next(parts).pairs) == PAIRS_AT_ONCE
    assert len(list(pairs)) == 4 * PAIRS_AT_ONCE


@pytest.mark.skipif(not STATM.exists(), reason="needs Linux, where a process can see its own memory")
def test_a_dataset_of_400_mb_is_opened_and_read_in_a_tenth_of_it(config: EnergyConfig, tmp_path: Path) -> None:
    num_pairs = 400_000_000 // (2 * 4 * 768)
    _write_sparse_dataset(tmp_path / "data", num_pairs)
    before = _memory_bytes()
    dataset = PairDataset(tmp_path / "data", config)
    batch = dataset[np.random.default_rng(0).integers(num_pairs, size=64).tolist()]
    assert batch.input_embedding.shape == (64, 768)
    assert _memory_bytes() - before < 40_000_000
