"""Small training programs that keep something, each with a comment at the line that does, and healthy ones."""

LOOP = """
import collections, functools
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(16, 32), torch.randn(16, 8)
{before}

def train():
    {first}
    for step in range({num_steps}):
        optimizer.zero_grad()
        out = model(x)
        loss = F.mse_loss(out, y)
        loss.backward({backward})
        optimizer.step()
        {each}

train()
"""


def program(
    each: str, *, before: str = "", first: str = "pass", backward: str = "", num_steps: int = 60, loop: str = LOOP
) -> str:
    """A training that does `each` after every update."""
    return loop.format(each=each, before=before, first=first, backward=backward, num_steps=num_steps)


# Leaks of which the path, the length and the line are to be told.

DICT_IN_HELPER = program(
    "remember(step, out)",
    before="""
cache = {}

def remember(step, out):
    key = ("output", step)
    cache[key] = out.detach().clone()  # fed
""",
)


DATA_SET = """
import torch

class Cached(torch.utils.data.Dataset):
    def __init__(self):
        self.cache = {}

    def __len__(self):
        return 60

    def __getitem__(self, index):
        self.cache[index] = torch.ones(32)  # fed
        return self.cache[index]

model = torch.nn.Linear(32, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(Cached()):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""
"""No variable has the loader, nor its data set."""


ITERATOR_OF_ITS_OWN = DICT_IN_HELPER.replace(
    "\nmodel =",
    """
class Rows(torch.utils.data.DataLoader):
    def _get_iterator(self):
        return iter([1, 2])

list(Rows([1]))
model =""",
)
"""To what a loader gives for an iterator there may be no weak reference."""


HOOK_WITH_ALIAS = program(
    "pass",
    before="""
class Taps:
    def __init__(self):
        self.d = {}

    def watch(self, name, module):
        def hook(module, inputs, output):
            store = self.d.setdefault(name, [])
            store.append(output.detach().clone())  # fed
        module.register_forward_hook(hook)

taps = Taps()
taps.watch("first", model[0])
taps.watch("last", model[2])
""",
)

ATTRIBUTE = program(
    "meter(loss)",
    before="""
class Meter:
    def __init__(self):
        self.total = torch.zeros(())

    def __call__(self, loss):
        scaled = 0.5 * loss
        self.total = self.total + scaled  # fed

meter = Meter()
""",
)

ENTRY = program(
    "totals.report(loss=loss, error=out.abs().mean())",
    before="""
class Totals:
    def __init__(self):
        self.sums = {}

    def report(self, **values):
        for key, value in values.items():
            self.sums[key] = self.sums.get(key, 0) + value  # fed

totals = Totals()
""",
)

LOCAL_ENTRY = program(
    """sums["steps"] += 1000
        sums["spread"] = sums["spread"] + out.detach().std()
        sums["loss"] += loss  # fed""",
    first='sums = {"loss": 0.0, "steps": 0, "spread": torch.zeros(())}',
)
"""Of the three entries that are bound anew one has a graph."""

PRE_HOOKS = program(
    "pass",
    first="""pass
    forward = model.forward
    def noisy(x):
        noise = torch.randn_like(x)
        model[0].register_forward_pre_hook(lambda module, given: (given[0] + noise,))  # fed
        return forward(x)
    model.forward = noisy
""",
    num_steps=20,
)
"""A module has its hooks in an `OrderedDict`."""

LOCAL = program("total = total + loss  # fed", first="total = torch.zeros(())")


CALLBACK_DEQUE = program(
    "callback.on_step(out)",
    before="""
class Callback:
    def __init__(self):
        self.recent = collections.deque()

    def on_step(self, out):
        self.recent.append(out)  # fed

callback = Callback()
""",
)


BUFFERS = program('model.register_buffer(f"activation_{step}", out.detach().clone())  # fed')

LRU_CACHE = program(
    "model_of.features(step)  # fed",
    before="""
class Extractor:
    @functools.lru_cache(maxsize=None)
    def features(self, step):
        return torch.ones(100) * step

model_of = Extractor()
""",
)

METRICS = program(
    "metrics.update(loss, out)",
    before="""
class Metrics:
    def __init__(self):
        self.losses, self.outputs = [], []

    def update(self, loss, out):
        self.losses.append(loss.detach())  # fed
        self.outputs.append(out.detach())

metrics = Metrics()
""",
)

# Without tensors.

HOOKS_PILE_UP = program("model[0].register_forward_hook(lambda *_: None)  # fed", num_steps=60)

PARAMETER_GROUPS = program('optimizer.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})  # fed')

PLAIN_RECORDS = program(
    'records.append({"step": step, "texts": ["a" * 1000]})  # fed',
    first="records = []",
)

ARRAYS_IN_A_DICT = program(
    "arrays[step] = numpy.ones(1000)  # fed",
    first="arrays = {}",
    before="import numpy",
)

FIGURES = program(
    "figure, axes = pyplot.subplots()  # fed",
    before="""
import warnings
warnings.simplefilter("ignore")
import matplotlib
matplotlib.use("agg")
from matplotlib import pyplot
""",
)

JOINED = program("bank = torch.cat([bank, out.detach()])  # fed", first="bank = torch.empty(0, 8)")

TOTAL_IN_PLACE = program("total += loss  # fed", first="total = torch.zeros(())")


BOUND_TWICE = program(
    """total = total + loss  # fed
        total = total * 1.0""",
    first="total = torch.zeros(())",
)

IN_BACKWARD = program(
    "pass",
    before="""
gradients = []

def keep(gradient):
    gradients.append(gradient.clone())  # fed

model[0].weight.register_hook(keep)
""",
)

IN_LIBRARY = program(
    "queue.put(out.detach())  # fed",
    before="""
import queue as queues
queue = queues.Queue()
""",
)

# Healthy.


BOUNDED = program(
    """cache[step] = out.detach()
        if len(cache) > 8:
            del cache[next(iter(cache))]
        window.append(out.detach())
        del window[:-10]
        recent.append(out.detach())
        features(step)""",
    first="cache, window, recent = {}, [], collections.deque(maxlen=10)",
    before="""
@functools.lru_cache(maxsize=8)
def features(step):
    return torch.ones(100) * step
""",
)


ENTRIES = program(
    """plain.append(out.detach())
        tuples.append((step, out.detach()))
        dicts.append({"at": step, "out": out.detach()})
        mixed.append(out.detach() if step % 2 else [out.detach()])""",
    first="plain, tuples, dicts, mixed = [], [], [], []",
    num_steps=24,
)


FILLS_FASTER_THAN_IT_FALLS = program(
    """outputs.extend([out.detach(), x, y])
        del outputs[:2]""",
    first="outputs = []",
)

# What a watch must not do.

UNDER_A_TRACER = (
    program(
        "kept.append(out.detach())",
        before="""
import sys
kept = []

def trace(*_):
    return trace

sys.settrace(trace)
""",
    )
    + 'print("tracer still there" if sys.gettrace() is trace else "it is gone")\n'
)

TAKES_LOCALS = program(
    """kept.append(out.detach())
        if step == 55:
            print(sorted(settings))""",
    first="settings = None; settings = locals()",
    before="kept = []",
)

LOOKS_BEHIND = program(
    """kept.append(out.detach())
        if step == 55:
            held = torch.ones(1)
            last = weakref.ref(held)
            del held
            print(sys.gettrace(), sys._getframe().f_trace, "gone" if last() is None else "kept")""",
    first="kept = []",
    before="import sys, weakref",
)

FORKS = program(
    """if step % 5 == 0:
            kept.append(out.detach())  # fed
        if step == 42:
            print("traced" if sys.gettrace() else "not traced", flush=True)
            child = os.fork()
            if child == 0:
                print("traced" if sys.gettrace() else "not traced", flush=True)
                os._exit(0)
            os.waitpid(child, 0)""",
    first="kept = []",
    before="import os, sys",
)

COMPILED = program(
    """compiled = act(out)
        outputs.append(compiled.detach())  # fed""",
    first="outputs = []",
    before="""
@torch.compile(backend="eager")
def act(values):
    doubled = values * 2
    return doubled.relu()
""",
)

AT_MODULE_LEVEL = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(32, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
total, kept = torch.zeros(()), []

def batches():
    seen = []
    while True:
        x = torch.randn(16, 32)
        seen.append(x)  # drawn
        yield x

source = batches()
for step in range(60):
    optimizer.zero_grad()
    loss = model(next(source)).square().mean()
    loss.backward()
    optimizer.step()
    total = total + loss  # fed
    kept.append(loss.item())
"""

EPOCHS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Linear(32, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(480, 32), torch.randn(480, 8)), batch_size=16)

def train():
    outputs = []
    for epoch in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            out = model(x)
            torch.nn.functional.mse_loss(out, y).backward()
            optimizer.step()
            outputs.append(out.detach())
        outputs.clear()

train()
"""

EACH_EPOCH = EPOCHS.replace("outputs.clear()", "kept.append(torch.cat(outputs)); outputs.clear()  # fed").replace(
    "outputs = []", "outputs, kept = [], []"
)
"""Hardly a watch after a count at a step comes to see an epoch end."""

BOUND_EACH_EPOCH = EPOCHS.replace("outputs.clear()", "outputs, bank = [], torch.cat([bank, bank])  # fed").replace(
    "outputs = []", "outputs, bank = [], torch.randn(256, 32)"
)

BESIDE_PLAIN_PYTHON = program(
    """work_out()
        history.append(out.detach().clone())  # fed""",
    first="history = []",
    before="""
def work_out():
    total = 0
    for number in range(40_000):
        total += number % 7
        total -= number % 3
    return total
""",
)
"""As a data set that makes its batches line by line: tracing all of it would take longer than a watch may."""

WITH_PLAIN_PYTHON = program(
    """history.append(out.detach().clone())
        total = 0
        for number in range(200_000):
            total += number % 7""",
    first="history = []",
)
