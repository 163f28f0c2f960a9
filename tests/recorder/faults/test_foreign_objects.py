"""Objects of the program's own whose code has side effects: the recorder runs none of it."""

import pytest

from efprof.artifacts.events import CollectorStopped, LoaderBuilt
from tests.recorder.conftest import Begin
from tests.recorder.recording import Recorded

START = """
import collections, collections.abc, faulthandler, os, signal, sys, torch, warnings
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler
torch.manual_seed(0)
calls = collections.Counter()
take = lambda batch: batch
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)
    def forward(self, batch):
        return self.layer(take(batch))
class Rows(Dataset):
    def __len__(self):
        return 120
    def __getitem__(self, index):
        return torch.randn(8)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
def train(batches):
    for batch in batches:
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
"""
LOADS = """
class Lazy(collections.abc.Mapping):
    def __getitem__(self, name):
        calls["load"] += 1
        return torch.randn(4, 8)
    def __iter__(self):
        return iter(["x", "y"])
    def __len__(self):
        return 2
take = lambda batch: batch["x"]
train(Lazy() for _ in range(30))
print(calls["load"])
"""
VALUES = """
class Counting(dict):
    def values(self):
        calls["values"] += 1
        return super().values()
take = lambda batch: batch["x"]
train(DataLoader(Rows(), batch_size=4, collate_fn=lambda rows: Counting(x=torch.stack(rows))))
print(calls["values"])
"""
POSES = """
class Posing:
    def __init__(self, rows):
        self.rows = rows
    @property
    def __class__(self):
        return torch.Tensor
take = lambda batch: batch.rows
train(DataLoader(Rows(), batch_size=4, collate_fn=lambda rows: Posing(torch.stack(rows))))
print(30)
"""
STREAMS = """
warnings.simplefilter("error")
class Stream(IterableDataset):
    def __len__(self):
        return 20
    def __iter__(self):
        return iter([torch.full((4, 8), float(number)) for number in range(30)])
train(DataLoader(Stream(), batch_size=None))
print(30)
"""
SAMPLES = """
class Order(Sampler):
    def __iter__(self):
        return iter(range(120))
    def __len__(self):
        calls["len"] += 1
        return 120
train(DataLoader(Rows(), batch_size=4, sampler=Order()))
print(calls["len"])
"""
FILTERS = """
warnings.simplefilter("error")
for _ in range(30):
    train([torch.randn(4, 8)])
    nn.utils.clip_grad_norm_(filter(lambda one: one.ndim > 5, net.parameters()), 1.0)
print(30)
"""
DISPATCHES = """
from torch.utils._pytree import tree_map
class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
    def __init__(self, inner):
        self.inner = inner
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        calls[str(function)] += 1
        bare = lambda one: one.inner if isinstance(one, Wrapped) else one
        wrapped = lambda one: Wrapped(one) if type(one) is torch.Tensor else one
        return tree_map(wrapped, function(*tree_map(bare, args), **tree_map(bare, kwargs or {})))
weight = nn.Parameter(Wrapped(torch.randn(8, 1)))
optimizer = torch.optim.SGD([weight], lr=0.01, foreach=False)
for _ in range(30):
    optimizer.zero_grad()
    (torch.randn(4, 8) @ weight).square().mean().backward()
    optimizer.step()
print(calls["aten._local_scalar_dense.default"])
"""
PROGRAMS = {
    "a mapping that loads": (LOADS, "30"),
    "a dict": (VALUES, "0"),
    "no tensor": (POSES, "30"),
    "a stream": (STREAMS, "30"),
    "a sampler": (SAMPLES, "0"),
    "a filter": (FILTERS, "30"),
    "a wrapper of tensors": (DISPATCHES, "0"),
}


@pytest.mark.parametrize("which", PROGRAMS)
def test_no_code_of_the_programs_own_objects_is_run(begin: Begin, which: str) -> None:
    program, printed = PROGRAMS[which]
    child = begin(START + program)
    assert child.wait() == 0, child.errors
    assert child.output.strip() == printed
    recorded = Recorded(folder=child.folder)
    assert len(recorded.steps) == 30
    assert recorded.events(CollectorStopped) == []
    assert {event.num_batches for event in recorded.events(LoaderBuilt)} <= {30, None}


REGISTERS = "faulthandler.register(signal.SIGUSR1, all_threads=False)\n"
TRAINS = "train(torch.randn(10, 4, 8))\n"
ASKS = """
os.kill(os.getpid(), signal.SIGUSR1)
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGUSR1)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.parametrize("program", [REGISTERS + TRAINS + ASKS, TRAINS + REGISTERS + ASKS], ids=["before", "later"])
def test_a_handler_that_python_does_not_know_of_stays_here_and_in_children(begin: Begin, program: str) -> None:
    child = begin(START + program, triggers=("signal",))
    assert child.wait() == 0, child.errors
    assert child.output.strip() == "0"
    assert child.errors.count("most recent call first") == 2
