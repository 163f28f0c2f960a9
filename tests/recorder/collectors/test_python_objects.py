"""What a data set holds in Python objects: estimated from a sample, by its path."""

from collections import deque
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from efprof.artifacts.readings import HeldContainer
from efprof.recorder.collectors.worker_memory import MAX_VISITED, DatasetScan
from efprof.units import MIB


class Data:
    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def __len__(self) -> int:
        return 1


def texts(count: int = 100_000) -> list[str]:
    return [f"text number {number:09d}" for number in range(count)]  # 70 bytes, 80 as they are allocated


def held_by(owner: object) -> list[HeldContainer]:
    return [held for held, _, _ in DatasetScan().at(owner)]


def test_a_list_of_texts_is_told_with_its_path_length_and_bytes() -> None:
    (held,) = held_by(Data(lines=texts()))
    assert (held.path, held.type, held.element_type, held.length) == ("Data.lines", "list", "str", 100_000)
    assert held.object_bytes == pytest.approx(100_000 * 80, rel=0.05)


def test_labels_are_a_few_objects_met_again() -> None:
    assert held_by(Data(labels=[number % 10 for number in range(1_000_000)])) == []


def test_of_a_long_text_the_page_counts_that_its_reference_count_lies_in() -> None:
    (held,) = held_by(Data(pages=[f"{number}" + "x" * 100_000 for number in range(400)]))
    assert held.object_bytes == pytest.approx(400 * 4096, rel=0.01)


def test_arrays_and_tensors_hold_no_objects() -> None:
    data = TensorDataset(torch.zeros(1_000_000), torch.zeros(1_000_000))
    assert held_by(data) == []
    assert held_by(Data(array=numpy.zeros(10_000_000), names=numpy.array(texts(), dtype=bytes))) == []


@pytest.mark.parametrize(
    "kind", [tuple, deque, set, frozenset, dict.fromkeys, lambda texts: numpy.array(texts, dtype=object)]
)
def test_every_kind_of_container_is_looked_into(kind: Any) -> None:
    (held,) = held_by(Data(kept=kind(texts())))
    assert held.length == 100_000
    assert held.object_bytes > 7 * MIB


def test_what_is_met_again_counts_once_and_ends_the_look() -> None:
    data = Data(lines=texts())
    data.same, data.self, data.around = data.lines, data, [data]  # type: ignore[attr-defined]
    assert len(held_by(data)) == 1


def test_what_lies_in_the_entries_counts() -> None:
    (held,) = held_by(Data(rows=[{"text": text, "words": text.split()} for text in texts(20_000)]))
    assert held.element_type == "dict"
    assert held.object_bytes > 20_000 * 500


def test_data_sets_within_data_sets_are_looked_into() -> None:
    parts = [Data(lines=texts()) for _ in range(2)]
    found = held_by(Subset(ConcatDataset(parts), [0]))  # type: ignore[arg-type, list-item]
    assert [held.path for held in found] == ["Data.lines", "Data.lines"]


def test_a_data_set_that_is_a_list_is_its_own_container() -> None:
    (held,) = held_by(texts())
    assert (held.path, held.length) == ("list", 100_000)


def test_a_look_is_bounded() -> None:
    look = DatasetScan()
    found = look.at([Data(inner=[[str(entry) for entry in range(100)] for _ in range(20)]) for _ in range(300)])
    assert look._num_visited <= MAX_VISITED
    assert found


def test_a_table_of_pandas_is_looked_into_by_its_columns_of_objects() -> None:
    pandas = pytest.importorskip("pandas")
    (held,) = held_by(Data(table=pandas.DataFrame({"text": pandas.Series(texts(), dtype=object), "number": 1.0})))
    assert held.path == "DataFrame.text"


def test_no_property_of_the_program_s_is_asked(tmp_path: Path) -> None:
    class Lazy(Data):
        @property
        def lines(self) -> list[str]:
            (tmp_path / "asked").touch()
            return texts()

    held_by(Lazy(other=1))
    assert not (tmp_path / "asked").exists()
