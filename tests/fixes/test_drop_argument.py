"""A dropped argument leaves valid Python, and the rest of the call as it was."""

import ast

import pytest

from efprof.fixes.drop_argument import drop_arguments
from efprof.model import CodeEdit

RETAIN, CREATE = "retain_graph", "create_graph"


def drop(text: str, *names: str) -> CodeEdit | None:
    """The edit of the call of `backward` in a file of this text."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    call = next(node for node in calls if "backward" in ast.unparse(node.func))
    return drop_arguments("train.py", text.split("\n"), call, names)


def apply(text: str, edit: CodeEdit) -> str:
    """The file after the edit."""
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
        ("backward((a + b), retain_graph=True, inputs=w)  # both", "backward((a + b), inputs=w)  # both"),
        ("if é: f('é', backward(é, retain_graph=True))", "if é: f('é', backward(é))"),
        ("scaler.scale(loss).backward(retain_graph=(True))", "scaler.scale(loss).backward()"),
        ("backward(\n    a,\n    retain_graph=True,\n)\nnext()", "backward(\n    a,\n)\nnext()"),
        ("backward(\n    retain_graph=True,\n    inputs=w,\n)", "backward(inputs=w,\n)"),
        ("loss.backward(\n    retain_graph=True,\n)", "loss.backward()"),
    ],
)
def test_the_argument_goes_and_nothing_else(text: str, expected: str) -> None:
    edit = drop(text, RETAIN)
    assert edit is not None
    assert apply(text, edit) == expected
    ast.parse(expected)


@pytest.mark.parametrize("order", [(RETAIN, CREATE), (CREATE, RETAIN)])
@pytest.mark.parametrize(
    "text", ["loss.backward({}=True, {}=True)", "backward(\n    loss,\n    {}=True,\n    {}=True,\n)"]
)
def test_two_arguments_go_in_any_order(text: str, order: tuple[str, str]) -> None:
    edit = drop(text.format(*order), RETAIN, CREATE)
    assert edit is not None
    assert ast.unparse(ast.parse(edit.new)) in ("loss.backward()", "backward(loss)")


def test_the_edit_covers_the_whole_call_and_keeps_its_indentation() -> None:
    text = "def step():\n    backward(\n        loss,\n        retain_graph=True,\n    )\n"
    edit = drop(text, RETAIN)
    assert edit == CodeEdit(
        file="train.py",
        line=2,
        old="    backward(\n        loss,\n        retain_graph=True,\n    )",
        new="    backward(\n        loss,\n    )",
    )


@pytest.mark.parametrize(
    "text",
    [
        "backward(\n    loss,  # the sum\n    retain_graph=True,\n)",
        "backward(\n    # needed below\n    retain_graph=True,\n)",
        "backward(\n    retain_graph=True,  # needed below\n    inputs=w,\n)",
    ],
)
def test_a_comment_beside_the_argument_is_left_to_a_person(text: str) -> None:
    assert drop(text, RETAIN) is None


def test_an_argument_that_is_not_there_gives_no_edit() -> None:
    assert drop("loss.backward(retain_graph=True)", CREATE) is None
