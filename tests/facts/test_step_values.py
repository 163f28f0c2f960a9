"""Whether what a step uses is made anew by each step, told by the text alone."""

import ast

import pytest

from efprof.facts.step_code import StepCode
from efprof.facts.step_values import StepValues

FILE = "train.py"


def is_new(text: str, function: str, value: str) -> bool:
    """Of a value in that function, where the last line of the text runs backward."""
    code = StepCode({FILE: ast.parse(text)}, [(FILE, len(text.splitlines()), "<module>")])
    return StepValues(code).is_made_anew(FILE, function, ast.parse(value, mode="eval").body)


def test_methods_of_one_name_that_call_each_other_are_searched_once_each() -> None:
    blocks = "".join(
        f"class Block{number}(Base):\n    def forward(self, x):\n        return super().forward(x)\n"
        for number in range(30)
    )
    loop = "for x in loader:\n    loss = model.forward(x)\n    loss.backward(create_graph=True)"
    assert is_new(blocks + loop, "Block7.forward", "x")
    assert not is_new(blocks + loop.replace("forward(x)", "forward(model.weight)"), "Block7.forward", "x")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("x.view(-1)", True),
        ("x.get('image')", True),
        ("queue.get()", True),
        ("next(batches)", True),
        ("next(iter(x))", True),
        ("cache.get('z')", False),
        ("weights.view(-1)", False),
        ("next(model.parameters())", False),
        ("next(iter(model.buffers()))", False),
    ],
)
def test_what_only_hands_on_is_as_new_as_what_it_hands_on(value: str, expected: bool) -> None:
    text = f"for x in loader:\n    y = {value}\n    y.sum().backward(create_graph=True)"
    assert is_new(text, "<module>", "y") is expected
