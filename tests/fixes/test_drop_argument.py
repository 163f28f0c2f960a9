"""A dropped argument leaves valid Python, and the rest of the call as it was."""

import ast

import pytest

from efprof.fixes.step_calls import drop_graph
from efprof.model import CodeEdit, Fix, SourceFile


def drop(text: str) -> Fix:
    """The fix of the call that begins on the first line of this file."""
    file = SourceFile("train.py", text.split("\n"))
    return drop_graph(file, 1, told="retain_graph", is_graph_of_gradients=False)


def apply(text: str, fix: Fix) -> str:
    """The file after the edit."""
    (edit,) = fix.changes
    assert isinstance(edit, CodeEdit)
    assert text.count(edit.old) == 1
    return text.replace(edit.old, edit.new)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loss.backward(retain_graph=True)", "loss.backward()"),
        ("loss.backward(retain_graph=True)  # twice", "loss.backward()  # twice"),
        ("loss.backward(retain_graph=True,)", "loss.backward()"),
        ("loss.backward(retain_graph=True, inputs=weights)", "loss.backward(inputs=weights)"),
        ("loss.backward(inputs=weights, retain_graph=True)", "loss.backward(inputs=weights)"),
        ("scaler.scale(loss).backward(None, retain_graph=True)", "scaler.scale(loss).backward(None)"),
        ("torch.autograd.backward(loss, retain_graph=True)", "torch.autograd.backward(loss)"),
        ("self.manual_backward(loss, retain_graph=True)", "self.manual_backward(loss)"),
        ("backward([a, b], create_graph=True, retain_graph=True, **more)", "backward([a, b], **more)"),
        ("if é: f('é', backward(é, retain_graph=True))", "if é: f('é', backward(é))"),
        ("backward(\n    a,\n    retain_graph=True,\n)\nnext()", "backward(a)\nnext()"),
    ],
)
def test_the_argument_goes_and_nothing_else(text: str, expected: str) -> None:
    fix = drop(text)
    assert fix.applicability == "safe"
    assert apply(text, fix) == expected
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
        "backward(\n    # needed below\n    retain_graph=True,\n)",
        "loss.backward(",
        "x = 1",
    ],
)
def test_what_is_not_plain_to_see_is_left_to_a_person(text: str) -> None:
    fix = drop(text)
    assert (fix.applicability, fix.changes) == ("manual", ())
    assert fix.summary.startswith("Drop `retain_graph=True`")
