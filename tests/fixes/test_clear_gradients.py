"""Where the clearing goes, so that no backward pass of a step is lost."""

import ast

import pytest

from efprof.fixes.step_calls import clear_gradients, clearing_lines
from efprof.model import CodeEdit, Fix, SourceFile, SourceLine

PLAIN = """\
for x, y in loader:
    loss = model(x)
    loss.backward()
    scheduler.step()
    optimizer.step()
"""
STEP = "optimizer.step()"
CALL = "optimizer.zero_grad(set_to_none=True)"


def fix_of(text: str, *steps: str) -> Fix:
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
    fix = fix_of(PLAIN, STEP)
    assert fix.applicability == "review"
    assert mended(PLAIN, fix) == f"{PLAIN}    {CALL}\n"


def test_an_attribute_and_a_scaler_keep_their_owner_and_optimizer() -> None:
    text = "def train(self):\n    self.optim.step()  # once\n    self.log()\n"
    expected = text.replace("# once\n", "# once\n    self.optim.zero_grad(set_to_none=True)\n")
    assert mended(text, fix_of(text, ".step")) == expected
    text = PLAIN.replace("optimizer.step()", "grad_scaler.step(optimizer)")
    assert mended(text, fix_of(text, "grad_scaler")) == f"{text}    {CALL}\n"
    text = PLAIN.replace("    optimizer.step()", "    if index % every == 0:\n        optimizer.step()")
    assert mended(text, fix_of(text, STEP)).endswith(f"        optimizer.step()\n        {CALL}\n")


def test_each_optimizer_is_cleared_below_its_own_step_and_an_unknown_one_left_to_a_person() -> None:
    text = PLAIN + "    other.step()\n"
    fix = fix_of(text, STEP, "other.step()")
    assert len(fix.changes) == 2
    assert f"`{CALL}` and `other.zero_grad(set_to_none=True)`" in fix.summary
    assert fix_of(PLAIN, "").applicability == "manual"
    text = "a.zero_grad()\nfor x in y:\n    b.zero_grad(set_to_none=True); c.zero_grad()\n    zero_grad()\n"
    assert clearing_lines(SourceFile("train.py", text.splitlines())) == ("train.py:1", "train.py:3")
    assert clearing_lines(SourceFile("train.py")) == ()


@pytest.mark.parametrize(
    "text",
    [
        "loss.backward()\noptimizer.step(closure)\n",
        "loss.backward()\noptimizers[0].step()\n",
        "loss.backward()\n[one.step() for one in optimizers]\n",
        "loss.backward()\ntrainer.fit(model)  # .step\n",
        "def learn(loss):\n    loss.backward()\nif done: optimizer.step()\n",
        "loss.backward(); optimizer.step()\n",
        "optimizer.step(); loss = model(x)\n",
    ],
)
def test_what_is_not_plain_to_see_is_left_to_a_person(text: str) -> None:
    fix = fix_of(text, ".step")
    assert (fix.applicability, fix.changes) == ("manual", ())
    assert "zero_grad" in fix.summary
