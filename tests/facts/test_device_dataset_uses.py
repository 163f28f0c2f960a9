"""What the text of a program tells of a line that moves something to the device: a data set, or not."""

import ast

import pytest

from efprof.facts.device_dataset_uses import DatasetUse, DatasetUses
from efprof.facts.step_code import StepCode


def use_of(text: str, marked: str = "# here") -> DatasetUse | None:
    """Of the line that ends in the mark; the steps are those around `backward()`."""
    lines, tree = text.splitlines(), ast.parse(text)
    backward = next(number for number, line in enumerate(lines, start=1) if "backward()" in line)
    around = [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.lineno <= backward <= (node.end_lineno or 0)
    ]
    code = StepCode({"train.py": tree}, [("train.py", backward, around[-1] if around else "<module>")])
    here = next(number for number, line in enumerate(lines, start=1) if line.endswith(marked))
    return DatasetUses(code).of_line("train.py", here)


def program(before: str, taken: str, loop: str = "for i in range(0, len(data), 64):") -> str:
    return f"{before}\n{loop}\n    batch = {taken}\n    loss = model(batch).sum()\n    loss.backward()\n"


TRAIN = "def train(model, values):\n    for i in range(9):\n        model(values[i : i + 8]).backward()\n"

DATA_SETS = {
    "a tensor sliced": program("data = data.to(device)  # here", "data[i : i + 64]"),
    "a tensor on cuda": program("data = load().cuda()  # here", "data[i : i + 64]"),
    "made there": program("data = torch.tensor(values, device='cuda')  # here", "data[i : i + 64]"),
    "drawn indices": program("data = data.to('cuda')  # here", "data[torch.randint(0, 9, (64,))]"),
    "parts of a permutation": program(
        "data = data.to('cuda')  # here", "data[index]", "for index in torch.randperm(len(data)).split(64):"
    ),
    "a counter": program("data = data.cuda()  # here\nstep = 0", "data[step % 9]; step += 1", "while True:"),
    "one of a pair": program("x, data = x.cuda(), data.cuda()  # here", "data[i : i + 64]"),
    "by key": program("data = {k: v.cuda() for k, v in data.items()}  # here", "data['x'][i : i + 64]"),
    "a list": program("data = [x.cuda() for x in loader]  # here", "x", "for x in data:"),
    "a list, counted": program("data = [x.cuda() for x in loader]  # here", "x", "for i, x in enumerate(data):"),
    "a list that is appended to": program(
        "data = []\nfor x in loader:\n    data.append(x.cuda())  # here", "x", "for x in data:"
    ),
    "parts of a tensor": program("data = data.cuda()  # here", "x", "for x in data.split(64):"),
    "parts, zipped before": program(
        "data = data.cuda()  # here\npairs = list(zip(data.split(64), y.split(64)))", "x", "for x, y in pairs:"
    ),
    "given to a loader": program(
        "x = x.cuda()  # here\nloader = DataLoader(TensorDataset(x, y), batch_size=64)", "x", "for x, y in loader:"
    ),
    "moved for a loader": program("loader = DataLoader(TensorDataset(x.cuda()))  # here", "x", "for x in loader:"),
    "of two parts of the data": program(
        "data = data.cuda()  # here\nother = data if is_training else held_out", "other[i : i + 64]"
    ),
    "returned": program(
        "def read():\n    return torch.tensor(values, device='cuda')  # here\ndata = read()", "data[i : i + 64]"
    ),
    "kept by a class": program(
        "class Images(Dataset):\n    def __init__(self, images):\n        self.images = images.cuda()  # here\n"
        "    def __getitem__(self, index):\n        return self.images[index]",
        "x", "for x in DataLoader(Images(images)):",
    ),
    "given to a function": TRAIN + "def main():\n    data = read().cuda()  # here\n    train(model, data)\n",
    "given by its name": TRAIN + "def main():\n    data = read().cuda()  # here\n    train(model, values=data)\n",
    "given to a class": "class Images:\n    def __init__(self, images):\n        self.images = images\n"
    "    def __getitem__(self, index):\n        return self.images[index]\n"
    "data = read().cuda()  # here\nimages = Images(data)\nfor i in range(9):\n    model(images[i]).backward()\n",
}  # fmt: skip

OTHERS = {
    "moved in the step": program("data = read()", "data[i : i + 64].cuda()  # here"),
    "to a type": program("data = data.to(torch.float32)  # here", "data[i : i + 64]"),
    "on the host": program("data = torch.tensor(values, device='cpu')  # here", "data[i : i + 64]"),
    "one batch for all steps": program("data = data.cuda()  # here", "data"),
    "a table of embeddings": program("table = torch.load(path).cuda()  # here", "table[x]", "for x in loader:"),
    "a table, counted loader": program(
        "table = table.cuda()  # here", "table[x]", "for i, x in enumerate(loader):"
    ),
    "a table, indices from drawn data": program("table = table.cuda()  # here\nx = data[i]", "table[x]"),
    "cut to a length": program("mask = mask.cuda()  # here", "mask[:length]"),
    "a parameter": program("data = torch.randn(9, device='cuda', requires_grad=True)  # here", "data[i : i + 64]"),
    "a parameter later": program("data = data.cuda()  # here\ndata.requires_grad_()", "data[i : i + 64]"),
    "a module's parameter": program("data = data.cuda()  # here\nw = Parameter(data)", "data[i : i + 64]"),
    "a workspace": program("data = torch.empty(9, device='cuda')  # here", "data[i : i + 64]"),
    "a replay buffer": program("data = data.cuda()  # here", "data[i : i + 64]; data[i] = observe()"),
    "a memory bank": program("data = data.cuda()  # here", "data[i : i + 64]; data.copy_(new)"),
    "a state that is added to": program("data = data.cuda()  # here", "data[i : i + 64]; data += noise"),
    "written by a function": program(
        "def put(i):\n    data[i] = observe()\ndata = data.cuda()  # here", "data[i : i + 64]; put(i)"
    ),
    "a length only": program("data = data.cuda()  # here", "other[i : i + 64]", "for i in range(len(data)):"),
    "another variable of that name": program(
        "def read():\n    data = torch.load(path).cuda()  # here\n    return data.mean()\ndata = values",
        "data[i : i + 64]",
    ),
    "hidden by an argument": "data = read().cuda()  # here\ndef train(data):\n    for i in range(9):\n"
    "        model(data[i : i + 8]).backward()\ntrain(values)\n",
    "a model's": program(
        "class Model(Module):\n    def __init__(self):\n        self.angles = torch.tensor(a, device='cuda')  # here\n"
        "    def forward(self, x):\n        return self.angles[x : x + 64]",
        "x",
    ),
    "what a model is given": program(
        "class Model(Module):\n    def __init__(self, angles):\n        self.angles = angles\n"
        "    def forward(self, x):\n        for i in range(9):\n            x += self.angles[i : i + 64]\n"
        "angles = torch.tensor(a, device='cuda')  # here\nmodel = Model(angles)",
        "x",
    ),
    "looked at before": program("data = data.cuda()  # here\nfirst = [data[i : i + 8] for i in range(9)]", "other"),
    "a module": program("model = Model().cuda()  # here", "other[i : i + 64]"),
}  # fmt: skip


@pytest.mark.parametrize("text", DATA_SETS.values(), ids=DATA_SETS.keys())
def test_what_steps_take_in_parts_is_a_data_set(text: str) -> None:
    use = use_of(text)
    assert use is not None
    assert use.use_sites


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS.keys())
def test_what_steps_use_otherwise_is_none(text: str) -> None:
    assert use_of(text) is None


MOVED = "data = data.to(device)  # here"
SLICED = program(MOVED, "data[i : i + 64]")


@pytest.mark.parametrize(
    "text",
    [
        SLICED,
        program(f"data = data / data.shape[0]\n{MOVED}\nprint(data.size(0), data.dtype)", "data[i : i + 64]"),
        program("x, data = x.to(device), data.to(device)  # here", "data[i : i + 64] + x[i : i + 64]"),
    ],
    ids=["alone", "looked at before", "two"],
)
def test_where_slices_are_all_that_is_done_with_it_they_are_given(text: str) -> None:
    use = use_of(text)
    assert use is not None
    assert [ast.unparse(one) for one in use.slices][:1] == ["data[i:i + 64]"]


@pytest.mark.parametrize(
    "text",
    [
        program("x, data = x.to(device), data.to(device)  # here", "data[i : i + 64]") + "print(model(x))\n",
        SLICED + "print(model(data).mean())\n",
        program(f"{MOVED}\ncentres = data.mean(0)", "data[i : i + 64] - centres"),
        program(f"{MOVED}\nindex = torch.randperm(9, device=data.device)", "data[i : i + 64]"),
        program(f"{MOVED}\nother = data", "data[i : i + 64] + other[i]"),
        program(f"{MOVED}\ndef evaluate():\n    model(data)", "data[i : i + 64]"),
        program(f"for _ in range(2):\n    data = f(data)\n    {MOVED}", "data[i : i + 64]"),
    ],
    ids=["validation too", "whole", "mean", "device", "alias", "another function", "moved again and again"],
)
def test_where_it_is_read_otherwise_too_no_slices_are_given(text: str) -> None:
    use = use_of(text)
    assert use is not None
    assert use.slices == ()


def test_filling_it_before_the_loop_is_no_writing() -> None:
    filled = "data = torch.tensor(values, device='cuda')  # here\nfor i in range(9):\n    data[i] = read(i)"
    assert use_of(program(filled, "data[i : i + 64]")) is not None


def test_a_list_is_told_from_tensors_with_names() -> None:
    a_list, pair = DATA_SETS["a list"], DATA_SETS["one of a pair"]
    unpacked = program("x, data = [one.cuda() for one in (x, data)]  # here", "data[i : i + 64]")
    assert [use.is_list for text in (a_list, pair, unpacked) if (use := use_of(text))] == [True, False, False]
