"""loop_around: the loop that repeats a line, and whether its rounds need what earlier ones gave."""

import ast
from textwrap import indent

import pytest

from efprof.facts.source.loops import LoopAround, loop_around

MARK = "# here"


def around(body: str) -> LoopAround | None:
    """Of the marked line, in a function of that body."""
    text = f"def train(model, items):\n{indent(body.strip(), '    ')}\n"
    (line,) = [number for number, code in enumerate(text.splitlines(), 1) if MARK in code]
    return loop_around(ast.parse(text), line)


INDEPENDENT = {
    "an append": "for x in items:\n    outputs.append(model(x))  # here",
    "a sum of losses": "for x, y in items:\n    loss = loss + criterion(model(x), y)  # here",
    "a name that each round gives anew": "for x in items:\n    x = x.float()\n    x = model(x)  # here",
    "a name that each branch gives anew": (
        "for x in items:\n    if x.is_first:\n        y = f(x)\n    else:\n        y = x\n    out = model(y)  # here"
    ),
    "an index": "for i in range(8):\n    out = model(items[i])  # here\n    outputs.append(out)",
    "results put together": "for x in items:\n    outputs = torch.cat([outputs, model(x)])  # here",
    "within with": "for x in items:\n    with autocast():\n        y = x.half()\n        y = model(y)  # here",
    "a comprehension": "out = [model(x) for x in items]  # here",
    "a map": "out = list(map(model, items))  # here",
    "a loop over results": "for out in map(model, items):  # here\n    total += out",
}
CHAINED = {
    "a state": "for x in items:\n    state = model(x, state)  # here",
    "a state by keyword": "for x in items:\n    out, (h, c) = model(x, state=(h, c))  # here",
    "a layer applied again": "for _ in range(8):\n    x = model(x)  # here",
    "a way round": "while True:\n    action = model(seen)  # here\n    seen, reward = env.step(action)",
    "an object that is told": (
        "for _ in items:\n    action = model(seen)  # here\n    env.step(action)\n    seen = env.look()"
    ),
    "by another name": "for _ in items:\n    seen = look(last)\n    out = model(seen)  # here\n    last = out",
    "a list": "for _ in items:\n    outputs.append(model(outputs[-1]))  # here",
    "a name that only some rounds give anew": (
        "for y in items:\n    if y.is_first:\n        x = y\n    x = model(x)  # here"
    ),
    "a name that one of three branches leaves": (
        "for y in items:\n    if y.a:\n        x = y\n    elif y.b:\n        pass\n    else:\n        x = y\n"
        "    x = model(x)  # here"
    ),
    "layers over items": "for _ in range(4):\n    items = [model(x) for x in items]  # here",
    "a walrus": "while (x := model(x)).sum() > 0:  # here\n    pass",
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_rounds_that_need_nothing_of_each_other_are_told(name: str) -> None:
    found = around(INDEPENDENT[name])
    assert found is not None
    assert not found.is_chained


@pytest.mark.parametrize("name", CHAINED)
def test_rounds_that_go_on_from_the_one_before_are_told(name: str) -> None:
    found = around(CHAINED[name])
    assert found is not None
    assert found.is_chained


def test_it_is_the_innermost_loop_of_the_same_function() -> None:
    nested = around("for batch in items:\n    for x in batch:\n        out = model(x)  # here")
    assert nested == LoopAround(line=3, is_chained=False, is_recurrent=False)
    assert around("for batch in items:\n    def encode(x):\n        return model(x)  # here") is None


def test_a_cell_written_by_hand_is_recurrent_and_a_sum_or_a_joined_list_is_not() -> None:
    def is_recurrent(line: str) -> bool:
        found = loop_around(ast.parse(f"for x in xs:\n    {line}\n"), 2)
        assert found is not None
        return found.is_recurrent

    assert is_recurrent("h = torch.tanh(x @ w + h @ u)")
    assert not is_recurrent("loss = loss + F.mse_loss(x, 0 * x)")
    assert not is_recurrent("out = torch.cat([out, x.sin()])")
