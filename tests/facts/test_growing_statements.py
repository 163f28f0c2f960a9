"""Statements that make a name hold more, and what they keep."""

import ast

import pytest

from efprof.facts.growing_statements import growing_statements


def kinds_of(code: str, name: str = "history") -> list[tuple[str, str]]:
    """(kind, value) of every statement that makes `name` grow by more than numbers or nothing."""
    found = growing_statements(ast.parse(code), "train.py", name)
    return [(statement.kind, ast.unparse(statement.value)) for statement in found if not statement.keeps_numbers]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("history.append(loss)", ("append", "loss")),
        ("self.history.append(loss)", ("append", "loss")),
        ("history['loss'].append(loss)", ("append", "loss")),
        ("history.setdefault('loss', []).append(loss)", ("append", "loss")),
        ("history.insert(0, loss)", ("insert", "loss")),
        ("history.extend(losses)", ("extend", "losses")),
        ("history[step] = loss", ("[...] =", "loss")),
        ("history += loss", ("+=", "loss")),
        ("history['sum'] += loss", ("+=", "loss")),
        ("history = history + loss", ("= +", "loss")),
        ("history = loss + history", ("= +", "loss")),
        ("history = torch.cat([history, loss])", ("= f()", "torch.cat([history, loss])")),
        ("history = 0.9 * history + 0.1 * loss", ("= f()", "0.9 * history + 0.1 * loss")),
        ("out, history = rnn(x, history)", ("= f()", "rnn(x, history)")),
    ],
)
def test_finds_what_grows(code: str, expected: tuple[str, str]) -> None:
    assert kinds_of(code) == [expected]


@pytest.mark.parametrize(
    "code", ["history = []", "history.clear()", "other.append(loss)", "history = history.detach()", "print(history)"]
)
def test_leaves_alone_what_does_not_grow(code: str) -> None:
    assert kinds_of(code) == []


@pytest.mark.parametrize(
    "value", ["loss.item()", "float(loss)", "step", "(1, loss.item())", "{'loss': loss.item()}", "f'{x}'"]
)
def test_knows_a_number_by_its_form(value: str) -> None:
    (found,) = growing_statements(ast.parse(f"history.append({value})"), "train.py", "history")
    assert found.keeps_numbers is (value != "step")


def test_names_the_function_as_python_does() -> None:
    code = "class Trainer:\n    def fit(self):\n        def log():\n            self.history.append(1)\n"
    (found,) = growing_statements(ast.parse(code), "train.py", "history")
    assert found.site == "train.py:4:Trainer.fit.<locals>.log"


def test_the_carried_argument_is_found() -> None:
    (found,) = growing_statements(ast.parse("out, state = self.rnn(x, state)"), "train.py", "state")
    assert found.carried is not None
    assert ast.unparse(found.carried) == "state"
