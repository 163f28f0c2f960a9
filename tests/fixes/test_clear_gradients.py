"""Where the clearing goes, so that no backward pass of a step is lost."""

import ast

import pytest

from efprof.fixes.clear_gradients import Code, UnclearedStep, clear_gradients, clearing_lines
from efprof.model import CodeEdit, Fix, SourceLine

PLAIN = """\
for x, y in loader:
    loss = model(x)
    loss.backward()
    scheduler.step()
    optimizer.step()
"""
BACKWARD, STEP = "loss.backward()", "optimizer.step()"
CALL = "optimizer.zero_grad(set_to_none=True)"


def fix_of(text: str, *steps: tuple[str, str], is_once: bool = True, is_alone: bool = True) -> Fix:
    """The fix for these (backward, step) lines, each named by a text that only it holds."""
    lines = text.splitlines()

    def line(part: str) -> SourceLine:
        (number,) = [number for number, line in enumerate(lines, 1) if part in line]
        return SourceLine(file="train.py", line=number, function="train", text=lines[number - 1].strip())

    return clear_gradients(
        [
            UnclearedStep(
                backward=line(backward), step=line(step) if step else None, is_once=is_once, is_alone=is_alone
            )
            for backward, step in steps
        ],
        Code(lines={"train.py": lines}, tree=lambda file: ast.parse(text)),
    )


def mended(text: str, fix: Fix) -> str:
    lines = text.splitlines()
    for change in fix.changes:
        assert isinstance(change, CodeEdit)
        assert lines[change.line - 1] == change.old
        lines[change.line - 1] = change.new
    ast.parse("\n".join(lines))
    return "\n".join(lines) + "\n"


def test_a_plain_loop_is_cleared_above_its_backward_pass() -> None:
    fix = fix_of(PLAIN, (BACKWARD, STEP))
    assert fix.applicability == "review"
    assert mended(PLAIN, fix) == PLAIN.replace("    loss.backward()", f"    {CALL}\n    loss.backward()")


def test_an_attribute_keeps_its_owner_and_autocast_is_no_fork() -> None:
    text = "def train(self):\n    self.optim.step()\n    with autocast():\n        self.loss().backward()\n"
    fixed = mended(text, fix_of(text, (".backward", ".step")))
    assert "        self.optim.zero_grad(set_to_none=True)\n        self.loss().backward()\n" in fixed


def test_a_scalers_step_names_the_optimizer() -> None:
    text = PLAIN.replace("optimizer.step()", "grad_scaler.step(optimizer)")
    assert f"    {CALL}\n    loss.backward()" in mended(text, fix_of(text, (BACKWARD, "grad_scaler")))


def test_accumulated_passes_are_cleared_below_the_step() -> None:
    text = PLAIN.replace("    optimizer.step()", "    if index % 4 == 0:\n        optimizer.step()")
    fixed = mended(text, fix_of(text, (BACKWARD, STEP), is_once=False))
    assert fixed.endswith(f"        optimizer.step()\n        {CALL}\n")


def test_a_step_that_runs_less_often_than_backward_is_cleared_below_it_though_it_ran_as_often_once() -> None:
    text = PLAIN.replace("    optimizer.step()", "    if index % every == 0:\n        optimizer.step()")
    assert mended(text, fix_of(text, (BACKWARD, STEP))).endswith(f"        optimizer.step()\n        {CALL}\n")


def test_backward_in_a_function_of_its_own_is_cleared_below_the_step() -> None:
    text = "def learn(loss):\n    loss.backward()\ndef train(optimizer):\n    optimizer.step()\n"
    assert mended(text, fix_of(text, (BACKWARD, STEP))).endswith(f"    optimizer.step()\n    {CALL}\n")


def test_a_critic_is_cleared_above_its_own_pass_and_never_below_its_step() -> None:
    text = "def train():\n    real.backward()\n    critic.step()\n    fake.backward()\n    maker.step()\n"
    fix = fix_of(text, ("real.backward", "critic.step"), is_alone=False)
    assert "    critic.zero_grad(set_to_none=True)\n    real.backward()\n" in mended(text, fix)
    assert fix_of(text, ("real.backward", "critic.step"), is_once=False, is_alone=False).applicability == "manual"


def test_two_optimizers_of_one_pass_are_cleared_by_one_edit() -> None:
    text = PLAIN + "    other.step()\n"
    fix = fix_of(text, (BACKWARD, STEP), (BACKWARD, "other.step()"))
    assert len(fix.changes) == 1
    expected = f"    {CALL}\n    other.zero_grad(set_to_none=True)\n    loss.backward()\n"
    assert expected in mended(text, fix)


def test_a_closure_clears_at_each_of_its_calls() -> None:
    text = (
        "def train():\n    def closure():\n        loss.backward()\n        return loss\n    optimizer.step(closure)\n"
    )
    fixed = mended(text, fix_of(text, (BACKWARD, "optimizer.step"), is_once=False))
    assert f"        {CALL}\n        loss.backward()\n" in fixed


@pytest.mark.parametrize(
    "text",
    [
        "def closure():\n    for part in parts:\n        loss.backward()\noptimizer.step(closure)\n",
        "def again():\n    loss.backward()\ndef train():\n    optimizer.step(again)\n",
        "loss.backward()\noptimizer.step(again)\n",
        "loss.backward()\noptimizers[0].step()\n",
        "loss.backward()\n[one.step() for one in optimizers]\n",
        "loss.backward()\ntrainer.fit(model)  # .step\n",
        "def learn(loss):\n    loss.backward()\nif done: optimizer.step()\n",
    ],
)
def test_what_is_not_plain_to_see_is_left_to_a_person(text: str) -> None:
    fix = fix_of(text, (BACKWARD, ".step"))
    assert (fix.applicability, fix.changes) == ("manual", ())
    assert "zero_grad" in fix.summary


def test_a_statement_that_shares_its_line_is_not_edited() -> None:
    text = "for x in loader:\n    loss = model(x); loss.backward()\n    optimizer.step()\n"
    assert mended(text, fix_of(text, (BACKWARD, STEP))).endswith(f"    optimizer.step()\n    {CALL}\n")


def test_an_unknown_step_is_left_to_a_person() -> None:
    assert fix_of(PLAIN, (BACKWARD, "")).applicability == "manual"


def test_clearings_that_are_there_are_found() -> None:
    text = "a.zero_grad()\nfor x in y:\n    b.zero_grad(set_to_none=True); c.zero_grad()\n    zero_grad()\n"
    assert clearing_lines("train.py", ast.parse(text)) == ("train.py:1", "train.py:3")
    assert clearing_lines("train.py", None) == ()
