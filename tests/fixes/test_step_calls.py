"""Edits of the calls of a step: checkpointing, clearing, a graph that is dropped; each leaves valid Python."""

import ast

import pytest

from efprof.fixes.step_calls import checkpoint_call, clear_gradients, drop_graph
from efprof.model import CodeEdit, Fix, SourceFile, SourceLine

HEAD = "import torch\nfrom torch.nn import functional\n"


def edited(line: str, head: str = HEAD) -> str | None:
    """The last line after the edit."""
    text = head + line
    lines = text.splitlines()
    edit = checkpoint_call(SourceFile("model.py", lines), len(lines))
    return None if edit is None else edit.new


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("y = self.block(x)", "y = torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)"),
        (
            "y = blocks[i](x, mask=m)",
            "y = torch.utils.checkpoint.checkpoint(blocks[i], x, mask=m, use_reentrant=False)",
        ),
        (
            "loss = functional.mse_loss(self.features(x), y)",
            "loss = functional.mse_loss(torch.utils.checkpoint.checkpoint(self.features, x, use_reentrant=False), y)",
        ),
    ],
)
def test_the_one_call_of_the_users_is_wrapped(line: str, expected: str) -> None:
    assert edited(line) == expected
    ast.parse(expected)


@pytest.mark.parametrize(
    "line",
    [
        "y = self.second(self.first(x))",
        "y = functional.relu(x)",
        "y = x.view(2, 3)",
        "y = self.block(*parts)",
    ],
)
def test_a_line_without_exactly_one_plain_call_is_left_to_a_person(line: str) -> None:
    assert edited(line) is None


def test_a_file_that_does_not_know_torch_by_name_is_left_to_a_person() -> None:
    assert edited("y = self.block(x)", head="from torch import nn\n") is None


LOOP = """\
for x, y in loader:
    loss = model(x)
    loss.backward()
    scheduler.step()
    optimizer.step()
"""
STEP = "optimizer.step()"
CALL = "optimizer.zero_grad(set_to_none=True)"


def clearing_of(text: str, *steps: str) -> Fix:
    """The fix for steps on these lines, each named by a text that only it holds."""
    lines = text.splitlines()

    def line(part: str) -> SourceLine:
        (number,) = [number for number, line in enumerate(lines, 1) if part in line]
        return SourceLine(file="train.py", line=number, function="train", text=lines[number - 1].strip())

    return clear_gradients([line(step) if step else None for step in steps], lambda file: SourceFile(file, lines))


def mended(text: str, fix: Fix) -> str:
    lines = text.splitlines()
    for change in fix.changes:
        assert isinstance(change, CodeEdit)
        assert lines[change.line - 1] == change.old
        lines[change.line - 1] = change.new
    ast.parse("\n".join(lines))
    return "\n".join(lines) + "\n"


def test_a_plain_loop_is_cleared_below_its_step() -> None:
    fix = clearing_of(LOOP, STEP)
    assert fix.applicability == "review"
    assert mended(LOOP, fix) == f"{LOOP}    {CALL}\n"


def test_an_attribute_and_a_scaler_keep_their_owner_and_optimizer() -> None:
    text = "def train(self):\n    self.optim.step()  # once\n    self.log()\n"
    expected = text.replace("# once\n", "# once\n    self.optim.zero_grad(set_to_none=True)\n")
    assert mended(text, clearing_of(text, ".step")) == expected
    text = LOOP.replace("optimizer.step()", "grad_scaler.step(optimizer)")
    assert mended(text, clearing_of(text, "grad_scaler")) == f"{text}    {CALL}\n"
    text = LOOP.replace("    optimizer.step()", "    if index % every == 0:\n        optimizer.step()")
    assert mended(text, clearing_of(text, STEP)).endswith(f"        optimizer.step()\n        {CALL}\n")


def test_each_optimizer_is_cleared_below_its_own_step_and_an_unknown_one_left_to_a_person() -> None:
    text = LOOP + "    other.step()\n"
    fix = clearing_of(text, STEP, "other.step()")
    assert len(fix.changes) == 2
    assert f"`{CALL}` and `other.zero_grad(set_to_none=True)`" in fix.summary
    assert clearing_of(LOOP, "").applicability == "manual"


@pytest.mark.parametrize(
    "text",
    [
        "loss.backward()\noptimizer.step(closure)\n",
        "loss.backward()\noptimizers[0].step()\n",
        "loss.backward()\n[one.step() for one in optimizers]\n",
        "def learn(loss):\n    loss.backward()\nif done: optimizer.step()\n",
        "loss.backward(); optimizer.step()\n",
    ],
)
def test_a_step_that_is_not_plain_to_see_is_cleared_by_a_person(text: str) -> None:
    fix = clearing_of(text, ".step")
    assert (fix.applicability, fix.changes) == ("manual", ())
    assert "zero_grad" in fix.summary


def drop(text: str) -> Fix:
    """The fix of the call that begins on the first line of this source."""
    source = SourceFile("train.py", text.split("\n"))
    return drop_graph(source, 1, "retain_graph")


def dropped(text: str, fix: Fix) -> str:
    """The source after the edit."""
    (edit,) = fix.changes
    assert isinstance(edit, CodeEdit)
    assert text.count(edit.old) == 1
    return text.replace(edit.old, edit.new)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loss.backward(retain_graph=True)", "loss.backward()"),
        ("loss.backward(retain_graph=True)  # twice", "loss.backward()  # twice"),
        ("loss.backward(retain_graph=True, inputs=weights)", "loss.backward(inputs=weights)"),
        ("loss.backward(inputs=weights, retain_graph=True)", "loss.backward(inputs=weights)"),
        ("scaler.scale(loss).backward(None, retain_graph=True)", "scaler.scale(loss).backward(None)"),
        ("self.manual_backward(loss, retain_graph=True)", "self.manual_backward(loss)"),
        ("backward([a, b], create_graph=True, retain_graph=True, **more)", "backward([a, b], **more)"),
        ("if é: f('é', backward(é, retain_graph=True))", "if é: f('é', backward(é))"),
        ("backward(\n    a,\n    retain_graph=True,\n)\nnext()", "backward(a)\nnext()"),
    ],
)
def test_the_argument_goes_and_nothing_else(text: str, expected: str) -> None:
    fix = drop(text)
    assert fix.applicability == "safe"
    assert dropped(text, fix) == expected
    ast.parse(expected)


@pytest.mark.parametrize(
    "text",
    [
        "loss.backward(None, True)",
        "loss.backward(retain_graph=is_shared)",
        "loss.backward(retain_graph=False, create_graph=True)",
        "torch.autograd.grad(loss, x, retain_graph=True)",
        "a.backward(retain_graph=True); b.backward(retain_graph=True)",
        "backward(\n    loss,  # the sum\n    retain_graph=True,\n)",
        "loss.backward(",
    ],
)
def test_an_argument_that_is_not_plain_to_see_is_dropped_by_a_person(text: str) -> None:
    fix = drop(text)
    assert (fix.applicability, fix.changes) == ("manual", ())
    assert fix.summary.startswith("Drop `retain_graph=True`")
