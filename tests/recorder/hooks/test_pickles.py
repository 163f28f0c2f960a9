"""What a program pickles while it is recorded is what it would pickle anyway, and is read where nobody knows efprof."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.recorder.conftest import Begin
from tests.recorder.recording import record_here

PICKLES_BY_VALUE = """
from pathlib import Path

import cloudpickle
import torch

class Model(torch.nn.Sequential):
    pass

class Batches:
    def __init__(self):
        self.num_left = 10
    def __iter__(self):
        return self
    def __next__(self):
        if not self.num_left:
            raise StopIteration
        self.num_left -= 1
        return torch.ones(2, 3)

def step(batch):
    optimizer.zero_grad()
    model(batch).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

model = Model(torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for batch in Batches():
    step(batch)
    pickled = cloudpickle.dumps((Model, model, step, torch.nn.utils.clip_grad_norm_, Batches()))
Path("pickled").write_bytes(pickled)
"""

LOADS = """
import pickle
import sys

import torch

sys.modules["efprof"] = None
Model, model, step, clip, batches = pickle.load(open("pickled", "rb"))
assert type(model) is Model
assert "__call__" not in vars(Model)
for batch in batches:
    step(batch)
print(clip.__name__, model(torch.ones(2, 3)).shape)
"""


def test_what_is_pickled_by_value_is_used_where_nobody_knows_efprof(begin: Begin, tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle", reason="needs cloudpickle")
    child = begin(PICKLES_BY_VALUE)
    assert child.wait() == 0, child.errors
    assert b"efprof" not in (tmp_path / "pickled").read_bytes()
    loaded = subprocess.run([sys.executable, "-c", LOADS], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert loaded.stdout == "clip_grad_norm_ torch.Size([2, 1])\n", loaded.stderr


@pytest.mark.parametrize("name", ["clip_grad_norm_", "clip_grad_value_"])
def test_a_function_that_torch_names_twice_is_pickled_by_either_name(name: str, tmp_path: Path) -> None:
    places, pickled = (torch.nn.utils, torch.nn.utils.clip_grad), list[bytes]()
    originals = [getattr(place, name) for place in places]
    record_here(tmp_path, lambda: pickled.extend(pickle.dumps(getattr(place, name)) for place in places))
    assert [pickle.loads(one) for one in pickled] == originals  # noqa: S301 - our own bytes
