"""What a program pickles while it is recorded is what it would pickle anyway, and is read where nobody knows efprof."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.recorder.collectors.test_iterators import Batches, Trainer, Yielding
from tests.recorder.conftest import Begin
from tests.recorder.recording import record_here

PICKLES_BY_VALUE = """
from pathlib import Path

import cloudpickle
import torch

class Model(torch.nn.Sequential):
    pass

class Batches:
    def __iter__(self):
        self.left = 10
        return self
    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return torch.ones(2, 3)

class Yielding:
    def __iter__(self):
        for _ in range(10):
            yield torch.ones(2, 3)

def step(batch):
    optimizer.zero_grad()
    model(batch).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

model = Model(torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for feed in (Batches(), Batches(), Yielding(), Yielding()):
    for number, batch in enumerate(feed):
        step(batch)
        if number == 8:
            name = type(feed).__name__
            Path(name).write_bytes(cloudpickle.dumps((Model, model, step, torch.nn.utils.clip_grad_norm_, feed)))
"""

LOADS = """
import pickle
import sys

sys.modules["efprof"] = None
for name in ("Batches", "Yielding"):
    Model, model, step, clip, feed = pickle.load(open(name, "rb"))
    assert type(model) is Model
    assert "__call__" not in vars(Model)
    for batch in feed:
        step(batch)
    print(clip.__name__, model(batch).shape)
"""


def test_what_is_pickled_by_value_is_used_where_nobody_knows_efprof(begin: Begin, tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle", reason="needs cloudpickle")
    child = begin(PICKLES_BY_VALUE)
    assert child.wait() == 0, child.errors
    assert not any(b"efprof" in (tmp_path / name).read_bytes() for name in ("Batches", "Yielding"))
    loaded = subprocess.run([sys.executable, "-c", LOADS], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert loaded.stdout == "clip_grad_norm_ torch.Size([2, 1])\n" * 2, loaded.stderr


def test_what_lies_in_the_class_of_an_iterator_is_pickled_as_the_programs_own_function(tmp_path: Path) -> None:
    places, originals = [(Batches, "__next__"), (Yielding, "__iter__")], [Batches.__next__, Yielding.__iter__]
    found: list[object] = []

    def train() -> None:
        trainer = Trainer()
        for batch in Batches():
            trainer.step(*batch)
        found.append(vars(Batches)["__next__"])

    def train_more() -> None:
        trainer = Trainer()
        for _ in range(2):
            for batch in Yielding():
                trainer.step(*batch)
        found.append(vars(Yielding)["__iter__"])

    record_here(tmp_path / "next", train)
    record_here(tmp_path / "iter", train_more)
    for one, original in zip(found, originals, strict=True):
        assert one is not original
        assert pickle.loads(pickle.dumps(one)) is original  # noqa: S301 - our own bytes
    assert [vars(kind)[name] for kind, name in places] == originals


@pytest.mark.parametrize("name", ["clip_grad_norm_", "clip_grad_value_"])
def test_a_function_that_torch_names_twice_is_pickled_by_either_name(name: str, tmp_path: Path) -> None:
    places, pickled = (torch.nn.utils, torch.nn.utils.clip_grad), list[bytes]()
    originals = [getattr(place, name) for place in places]
    record_here(tmp_path, lambda: pickled.extend(pickle.dumps(getattr(place, name)) for place in places))
    assert [pickle.loads(one) for one in pickled] == originals  # noqa: S301 - our own bytes
