"""What of the training process and its data workers is read and when, and what a data set holds in Python objects."""

import sys
from collections import deque
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from efprof.artifacts.readings import WORKER_MEMORY_FILE, HeldContainer, ProcessMemory, read_worker_memory
from efprof.recorder.budget import sampling
from efprof.recorder.collectors import worker_memory
from efprof.recorder.collectors.worker_memory import MAX_VISITED, containers_of
from efprof.units import MIB
from tests.recorder.recording import HARDLY_ANY_IN_FULL, Recorded, line_of, record_here

NUM_BATCHES = 12


class Texts(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.texts = [f"text number {number:09d}" for number in range(50_000)]  # filled

    def __len__(self) -> int:
        return 4 * NUM_BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(len(self.texts[index])))


class Program:
    def __init__(self, *, num_workers: int = 2, persistent_workers: bool = False, num_epochs: int = 1) -> None:
        self.model = torch.nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        self.loader = DataLoader(Texts(), batch_size=4, num_workers=num_workers, persistent_workers=persistent_workers)
        self.num_epochs = num_epochs

    def run(self) -> None:
        for _ in range(self.num_epochs):
            for batch in self.loader:
                self.optimizer.zero_grad()
                self.model(batch).mean().backward()
                self.optimizer.step()


def workers_in(processes: list[ProcessMemory]) -> set[int | None]:
    return {process.worker for process in processes if process.loader is not None}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record_here(tmp_path_factory.mktemp("workers"), Program(num_epochs=2).run)


def test_workers_are_read_once_they_run_later_and_before_they_end(recorded: Recorded) -> None:
    samples, _ = read_worker_memory(recorded.rank)
    assert [sample.step for sample in samples][:2] == [0, 10]
    assert samples[-1].step >= 2 * NUM_BATCHES - 1
    for sample in samples:
        assert workers_in(sample.processes) == {0, 1}
        assert sum(process.is_training for process in sample.processes) == 1


def test_each_sample_comes_after_twice_as_many_steps(tmp_path: Path) -> None:
    program = Program()
    program.loader = DataLoader(Subset(Texts(), [0] * 180), batch_size=4, num_workers=1)
    samples, _ = read_worker_memory(record_here(tmp_path, program.run).rank)
    assert [sample.step for sample in samples] == [0, 10, 20, 40, 45]


def test_what_a_process_shares_and_has_alone_adds_up(recorded: Recorded) -> None:
    samples, _ = read_worker_memory(recorded.rank)
    for process in samples[0].processes[:2]:  # the workers
        assert 0 < process.private_bytes <= process.pss_bytes
        assert process.anonymous_bytes > process.shared_anonymous_bytes > MIB


def test_the_data_set_is_looked_at_once_with_the_line_that_fills_it(recorded: Recorded) -> None:
    _, (data_set,) = read_worker_memory(recorded.rank)
    assert (data_set.start_method, data_set.loader) == ("fork", 0)
    (held,) = data_set.containers
    assert (held.path, held.length, held.element_type) == ("Texts.texts", 50_000, "str")
    assert held.site is not None
    assert held.site.endswith(f"test_worker_memory.py:{line_of(Path(__file__), 'filled')}:Texts.__init__")


def test_workers_that_are_kept_are_the_same_in_every_epoch(tmp_path: Path) -> None:
    program = Program(persistent_workers=True, num_epochs=3)
    samples, _ = read_worker_memory(record_here(tmp_path, program.run).rank)
    pids = {process.pid for sample in samples for process in sample.processes if process.loader is not None}
    assert len(pids) == 2


def test_a_loader_without_workers_writes_nothing(tmp_path: Path) -> None:
    recorded = record_here(tmp_path, Program(num_workers=0).run)
    assert not (recorded.rank / WORKER_MEMORY_FILE).exists()


def test_what_the_budget_does_not_afford_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ALLOWANCE_NS", 0)
    recorded = record_here(tmp_path, Program().run, overhead=HARDLY_ANY_IN_FULL)
    assert not (recorded.rank / WORKER_MEMORY_FILE).exists()


def test_a_system_that_does_not_tell_of_processes_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_memory, "Path", lambda _: tmp_path / "missing")
    recorded = record_here(tmp_path / "run", Program().run)
    assert not (recorded.rank / WORKER_MEMORY_FILE).exists()


class Data:
    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def __len__(self) -> int:
        return 1


def texts(count: int = 100_000) -> list[str]:
    return [f"text number {number:09d}" for number in range(count)]


def allocated_bytes(objects: list[str]) -> int:
    """Python allocates in steps of 16 bytes; a text's header is smaller from 3.12 on."""
    return sum(-(-sys.getsizeof(text) // 16) * 16 for text in objects)


def held_by(owner: object) -> list[HeldContainer]:
    return [held for held, _, _ in containers_of(owner)]


def test_a_list_of_texts_is_told_with_its_path_length_and_bytes() -> None:
    (held,) = held_by(Data(lines=texts()))
    assert (held.path, held.type, held.element_type, held.length) == ("Data.lines", "list", "str", 100_000)
    assert held.object_bytes == pytest.approx(allocated_bytes(texts()), rel=0.05)


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
    assert held.object_bytes == pytest.approx(allocated_bytes(texts()), rel=0.05)


def test_what_is_met_again_counts_once_and_ends_the_look() -> None:
    data = Data(lines=texts())
    data.same, data.self, data.around = data.lines, data, [data]  # type: ignore[attr-defined]
    assert len(held_by(data)) == 1


def test_what_lies_in_the_entries_counts() -> None:
    (held,) = held_by(Data(rows=[{"text": text, "words": text.split()} for text in texts(20_000)]))
    assert held.element_type == "dict"
    assert held.object_bytes > 20_000 * 500


def test_a_look_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: set[int] = set()
    entries = worker_memory._entries

    def counted(value: Any, number: int) -> Any:
        looked_at.add(id(value))
        return entries(value, number)

    monkeypatch.setattr(worker_memory, "_entries", counted)
    assert held_by([Data(inner=[[str(entry) for entry in range(100)] for _ in range(20)]) for _ in range(300)])
    assert len(looked_at) <= MAX_VISITED + 1


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
