"""Where a NaN or Inf is born: forward, within backward, in an update, or before anything was traced."""

import textwrap
from pathlib import Path

import pytest

from efprof.artifacts.hunts import Origin
from tests.recorder.hunt.snippets import line_of, trace

LOOP = """
torch.manual_seed(0)
lin = torch.nn.Linear(4, 4)
opt = torch.optim.{optimizer}(lin.parameters(), lr=0.01)
for step in range(6):
    x = torch.randn(3, 4)
{body}
    opt.zero_grad()
    loss.backward()
    opt.step(){after}
"""


def looped(body: str, optimizer: str = "SGD", after: str = "") -> str:
    return LOOP.format(
        body=textwrap.indent(textwrap.dedent(body).strip("\n"), "    "), optimizer=optimizer, after=after
    )


SICK = {
    "a mean over nothing that counts with whole numbers": (
        looped("""
        valid = torch.arange(3) < (0 if step == 4 else 2)
        loss = (lin(x).sum(1) * valid).sum() / valid.sum()  # born
        """),
        "nan", "div", "",
    ),
    "a slope within backward": (
        looped("""
        z = lin(x) * (0 if step == 4 else 1)
        length = z.pow(2).sum(1).sqrt()  # born
        loss = length.mean()
        """),
        "inf", "div", "SqrtBackward0",
    ),
    "a branch that a mask hides": (
        looped("""
        z = lin(x).abs() * (torch.arange(4) > (0 if step == 4 else -1))
        y = torch.where(z > 0, z.log(), torch.zeros_like(z))  # born
        loss = y.pow(2).mean()
        """),
        "nan", "div", "LogBackward0",
    ),
    "a row in which everything is masked": (
        looped("""
        scores = lin(x)
        if step == 4:
            scores = scores.masked_fill(torch.tensor([True]), float("-inf"))
        loss = scores.softmax(-1)[:, 0].mean()  # born
        """),
        "nan", "_softmax", "",
    ),
    "an overflow of half precision": (
        looped("""
        with torch.autocast("cpu", dtype=torch.float16):
            wide = lin(x * (1e4 if step == 4 else 1)) * 10  # born
        loss = wide.float().pow(2).mean()
        """),
        "inf", "mul", "",
    ),
    "a cast to half precision": (
        looped("""
        wide = lin(x) * (1e6 if step == 4 else 1)
        loss = wide.half().float().mean()  # born
        """),
        "inf", "_to_copy", "",
    ),
    "a checkpointed block": (
        looped("""
        def block(x):
            h = lin(x) * (0 if step == 4 else 1)
            return h / h.norm()  # born
        loss = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).pow(2).mean()
        """),
        "nan", "div", "",
    ),
    "a backward that was written by hand": (
        """
class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.sqrt()
        ctx.save_for_backward(y)
        return y
    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient / (2 * y)  # born
"""
        + looped("""
        loss = Root.apply(lin(x).abs() * (0 if step == 4 else 1)).mean()
        """),
        "inf", "div", "",
    ),
    "a gradient of a gradient": (
        looped("""
        x = torch.randn(3, 4, requires_grad=True)
        score = (lin(x) * (0 if step == 4 else 1)).sum()
        (slope,) = torch.autograd.grad(score, x, create_graph=True)
        loss = (slope.square().sum(1).sqrt() - 1).square().mean()  # born
        """),
        "inf", "div", "SqrtBackward0",
    ),
    "an update whose eps is nothing in half precision": (
        looped("lin.half(); x[:, 1] = 0; loss = lin(x.half()).float().mean()", "Adam", "  # born"),
        "nan", "addcdiv_", "",
    ),
    "an operation in place": (
        looped("""
        z = lin(x) * (0 if step == 4 else 1)
        z /= z.detach().abs().sum()  # born
        loss = z.mean()
        """),
        "nan", "div_", "",
    ),
    "two optimizers of which one trains the other's weights too": (
        looped("""
        other = torch.optim.Adam([lin.bias], lr=0.1)
        loss = lin(x).square().mean()
        if step == 4:
            loss = loss / (loss - loss).detach()  # born
        """),
        "inf", "div", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SICK)
def test_the_line_that_makes_the_first_one_is_named(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, kind, operation, node = SICK[case]
    seen = trace(code, tmp_path, monkeypatch)
    assert seen.errors == []
    assert seen.origin is not None
    assert seen.origin.site is not None
    assert int(seen.origin.site.split(":")[1]) == line_of(code)
    assert (seen.origin.kind, seen.origin.operation, seen.origin.node) == (kind, operation, node)


HEALTHY = {
    "a causal mask": looped("""
        scores = (lin(x) @ x.T).masked_fill(torch.ones(3, 3).triu(1).bool(), float("-inf"))
        loss = (scores.softmax(-1) @ x).mean()
        """),
    "NaN that relu drops": looped("""
        z = lin(x)
        loss = torch.relu(z).mean() + torch.relu(z.detach() * float("nan")).nan_to_num().mean()
        """),
    "a metric that is NaN": looped("""
        loss = lin(x).mean()
        accuracy = torch.tensor(0.0) / torch.tensor(0.0)
        """),
    "memory that is filled later": looped("""
        buffer = torch.empty(3, 4).fill_(float("nan"))
        buffer.copy_(x)
        loss = lin(buffer).mean()
        """),
    "a norm at zero": looped("""
        loss = (lin(x) * 0).norm() + lin(x).mean()
        """),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_nothing_is_named_that_reaches_neither_loss_nor_gradient(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = trace(HEALTHY[case], tmp_path, monkeypatch)
    assert (seen.why, seen.origin, seen.errors) == ("ended", None, [])


MORE = {
    "a closure that the optimizer calls": (
        """
torch.manual_seed(0)
lin = torch.nn.Linear(4, 4)
opt = torch.optim.Adam(lin.parameters(), lr=0.01)
for step in range(6):
    x = torch.randn(3, 4)
    def closure():
        unit = x * 0 / (x * 0).norm() if step == 4 else x  # born
        loss = lin(unit).square().mean()
        opt.zero_grad()
        loss.backward()
        return loss
    opt.step(closure)
""",
        "nan",
    ),
    "a number that was read from a bad tensor": (
        looped("""
        score = (x.sum() * 0) / (x.sum() * 0) if step == 4 else x.sum()  # born
        loss = lin(x).square().mean() * score.item()
        """),
        "nan",
    ),
    "a mask of -inf that was made ahead of all": (
        """
mask = torch.full((3, 3), -float("inf")).triu(1)
"""
        + looped("""
        scores = lin(x) @ x.T + mask
        if step == 4:
            scores = scores * 0  # born
        loss = (scores.softmax(-1) @ x).square().mean()
        """),
        "nan",
    ),
    "another part of the same memory": (
        """
memory = torch.zeros(4, 4)
"""
        + looped("""
        memory[0] = torch.log(-torch.ones(4))
        if step == 4:
            memory[1] = x.sum(0) / (x.sum(0) * 0)  # born
        loss = lin(memory[1]).square().mean()
        """),
        "inf",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MORE)
def test_what_merely_looks_like_the_first_one_is_not_blamed(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, kind = MORE[case]
    origin = origin_of(code, tmp_path, monkeypatch)
    assert origin.site is not None
    assert (int(origin.site.split(":")[1]), origin.kind, origin.optimizer) == (line_of(code), kind, "")


def test_running_statistics_lead_to_the_batch_that_spoilt_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = looped("""
        if step == 0:
            norm = torch.nn.BatchNorm1d(4)
        if step == 2:
            with torch.no_grad():
                norm(x.log())  # born
        norm.train(step < 4)
        loss = norm(lin(x)).square().mean()
        """)
    origin = origin_of(code, tmp_path, monkeypatch)
    assert (origin.operation, origin.site) == ("log", f"snippet.py:{line_of(code)}:<module>")


def test_a_number_of_the_programs_own_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = looped("""
        loss = lin(x).mean() * (float("nan") if step == 4 else 1.0)  # born
        """)
    origin = origin_of(code, tmp_path, monkeypatch)
    assert (origin.kind, origin.scalars, origin.operation) == ("literal", ["nan"], "mul")


def test_a_norm_beyond_float32_is_the_hit_though_every_gradient_is_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = trace(looped("loss = (lin(x) * (1e25 if step == 4 else 1)).mean()"), tmp_path, monkeypatch)
    assert (seen.why, seen.symptom, seen.origin, seen.num_passes) == ("hit", "gradient", None, 5)


def origin_of(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Origin:
    origin = trace(code, tmp_path, monkeypatch).origin
    assert origin is not None
    return origin


def test_bad_data_is_blamed_where_it_first_meets_what_needs_a_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = looped("""
        if step == 4:
            x = torch.from_numpy(__import__("numpy").full((3, 4), float("nan"), dtype="float32"))
        x = x * 2 - 1
        loss = lin(x).mean()  # born
        """)
    origin = origin_of(code, tmp_path, monkeypatch)
    assert (origin.kind, origin.operands[0].num_nan) == ("given", 12)
    assert origin.site == f"snippet.py:{line_of(code)}:<module>"


def test_the_names_of_parameters_and_the_lines_that_wrote_a_buffer_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
class Memory(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.num = torch.nn.Linear(4, 4), 0
        self.register_buffer("trace", torch.ones(4))
    def forward(self, x):
        y = self.inner(x)
        self.num = self.num + 1
        self.trace.mul_(1e35 if self.num > 3 else 1.0)  # written
        return (y * 1e5 * self.trace).mean()  # born
model = Memory()
opt = torch.optim.SGD(model.parameters(), lr=1e-30)
for step in range(8):
    loss = model(torch.ones(2, 4))
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
    origin = origin_of(code, tmp_path, monkeypatch)
    (trace_,) = [one for one in origin.operands if one.is_a == "buffer"]
    assert (trace_.name, origin.module) == ("trace", "Memory")
    assert trace_.made_at.startswith(f"snippet.py:{line_of(code, '# written')}:")


def test_a_hidden_branch_is_called_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = looped("""
        z = lin(x) * (torch.arange(4) > (0 if step == 4 else -1))
        y = torch.where(z != 0, z.square().sqrt(), torch.zeros_like(z))  # born
        loss = y.mean()
        """)
    origin = origin_of(code, tmp_path, monkeypatch)
    assert origin.is_masked
    assert origin.site == f"snippet.py:{line_of(code)}:<module>"


def test_the_way_from_there_to_the_loss_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = looped("""
        z = lin(x) / (0 if step == 4 else 1)  # born
        z = z * 2
        loss = z.mean()
        """)
    seen = trace(code, tmp_path, monkeypatch)
    first = line_of(code)
    assert [int((hop.site or "").split(":")[1]) for hop in seen.chain] == [first, first + 1, first + 2]
