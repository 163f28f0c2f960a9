"""Statements that keep tensors, changed to keep less."""

import ast

import pytest

from efprof.fixes.keep_less import KeepingStatement, keep_fewer, keep_without_graph
from efprof.model import CodeEdit, Fix, SourceLine

READER = SourceLine(file="train.py", line=9, function="train", text="torch.stack(history).sum().backward()")


def fix_of(code: str, value: str, *, carried: str | None = None, kind: str = "list", is_read: bool = False) -> Fix:
    """The fix of a statement that keeps the expression spelled `value`."""
    tree = ast.parse(code)
    found = {ast.unparse(node): node for node in ast.walk(tree) if isinstance(node, ast.expr)}
    statement = KeepingStatement(
        file="train.py",
        line=1,
        name="history",
        kind=kind,
        value=found[value],
        carried=found[carried] if carried else None,
        readers=(READER,) if is_read else (),
    )
    return keep_without_graph(statement, code.splitlines(), tree)


def test_a_record_is_not_detached_but_the_tensor_in_it() -> None:
    code = "history.append(Step(loss, reward)); loss.backward()"
    (change,) = fix_of(code, "Step(loss, reward)").changes
    assert isinstance(change, CodeEdit)
    assert change.new == "history.append(Step(loss.detach(), reward)); loss.backward()"
    unknown = fix_of("history.append(Step(value, reward))", "Step(value, reward)")
    assert (unknown.applicability, unknown.changes) == ("manual", ())


@pytest.mark.parametrize(
    ("code", "value", "expected"),
    [
        ("history.append(loss)", "loss", "history.append(loss.detach())"),
        ("total += loss", "loss", "total += loss.detach()"),
        ("total += loss * n", "loss * n", "total += (loss * n).detach()"),
        ("history += [loss]", "[loss]", "history += [loss.detach()]"),
        ("state['loss'] = model(x).mean()", "model(x).mean()", "state['loss'] = model(x).mean().detach()"),
    ],
)
def test_detaches_what_is_kept(code: str, value: str, expected: str) -> None:
    fix = fix_of(code, value)
    assert fix.changes == (CodeEdit(file="train.py", line=1, old=code, new=expected),)
    assert fix.applicability == "safe"


def test_detaches_the_tensor_of_a_pair() -> None:
    code = "history.append((step, loss))\nloss.backward()"
    assert "history.append((step, loss.detach()))" in str(fix_of(code, "(step, loss)").changes)


def test_a_pair_of_unknown_things_is_left_to_a_person() -> None:
    assert fix_of("history.append((a, b))", "(a, b)").applicability == "manual"


def test_another_reader_is_named_and_makes_it_a_review() -> None:
    fix = fix_of("history.append(loss)", "loss", is_read=True)
    assert fix.applicability == "review"
    assert "train.py:9" in fix.summary


def test_a_carried_state_is_cut_where_it_enters_the_call() -> None:
    code = "out, history = rnn(x, history)"
    tensor = fix_of(code, "rnn(x, history)", carried="history", kind="Tensor")
    assert tensor.changes == (
        CodeEdit(file="train.py", line=1, old=code, new="out, history = rnn(x, history.detach())"),
    )
    pair = fix_of(code, "rnn(x, history)", carried="history", kind="tuple")
    assert "rnn(x, tuple(part.detach() for part in history))" in str(pair.changes)
    assert tensor.applicability == "review"


def test_tensors_without_graphs_are_bounded_by_a_person() -> None:
    fix = keep_fewer("history", "list", 500)
    assert fix.applicability == "manual"
    assert "deque(maxlen=500)" in fix.summary
