"""Statements that keep tensors, changed to keep less."""

import ast

import pytest

from efprof.fixes.keep_less import CLONED, DETACHED, keep_copies, keep_fewer, keep_without_graph, kept_at
from efprof.model import CodeEdit, Fix, SourceFile


def fix_of(code: str, entry: str = "Tensor", *, is_tensor: bool = False, how: str = DETACHED) -> Fix:
    """The fix of the first line, with entries of these types."""
    file = SourceFile("train.py", code.splitlines())
    kept = kept_at(file, 1, "history")
    assert kept is not None
    return keep_without_graph(file, kept, name="history", is_tensor=is_tensor, entry=entry.split(), how=how)


@pytest.mark.parametrize(
    ("code", "entry", "expected"),
    [
        ("history.append(loss)", "Tensor", "history.append(loss.detach())"),
        ("history.append(-loss)", "Tensor", "history.append((-loss).detach())"),
        ("history.append(model(x))", "Tensor", "history.append(model(x).detach())"),
        ("history += [y]", "Tensor", "history += [y.detach()]"),
        ("history['loss'] = out.loss", "Tensor", "history['loss'] = out.loss.detach()"),
        ("history.append((step, loss))", "tuple int Tensor", "history.append((step, loss.detach()))"),
        ("history.append({'at': 1, 'l': y})", "dict int Tensor", "history.append({'at': 1, 'l': y.detach()})"),
        ("history.append(Step(loss, 1))", "Step Tensor int", "history.append(Step(loss.detach(), 1))"),
    ],
)
def test_detaches_what_was_counted_to_be_a_tensor(code: str, entry: str, expected: str) -> None:
    fix = fix_of(code, entry)
    assert fix.changes == (CodeEdit(file="train.py", line=1, old=code, new=expected),)
    assert fix.applicability == "review"


@pytest.mark.parametrize(
    ("code", "entry"),
    [
        ("history.append(loss)", ""),
        ("history.append(record)", "Record"),
        ("history.append(pair)", "tuple int Tensor"),
        ("history.append((*rest, loss))", "tuple int Tensor"),
        ("history.append(Step(loss, at=1))", "Step Tensor int"),
        ("history += losses", "Tensor"),
        ("history = history + [a, b]", "Tensor"),
    ],
)
def test_what_was_not_counted_to_be_one_tensor_is_left_to_a_person(code: str, entry: str) -> None:
    fix = fix_of(code, entry)
    assert (fix.applicability, fix.changes) == ("manual", ())


def test_what_is_added_to_a_tensor_is_one_and_an_unknown_statement_is_left_to_a_person() -> None:
    assert "history += loss.detach()" in str(fix_of("history += loss", "", is_tensor=True).changes)
    fix = keep_without_graph(
        SourceFile("train.py"), None, name="history", is_tensor=False, entry=["Tensor"], how=DETACHED
    )
    assert (fix.applicability, fix.changes) == ("manual", ())


def test_a_bound_tells_what_takes_a_hundredth_of_the_memory_in_its_own_unit() -> None:
    elsewhere = "write it to disk now and then"
    summary = keep_fewer("bank", 500, "entries", elsewhere=elsewhere, others=("second",)).summary
    assert summary.endswith("now and then. 500 entries take 1 % of the memory there is. Likewise `second`.")
    summary = keep_fewer("bank", 1500, "steps", elsewhere=elsewhere).summary
    assert summary.endswith("What 1,500 steps add takes 1 % of the memory there is.")


def test_of_a_small_part_of_a_storage_a_copy_is_kept() -> None:
    code = "firsts.append(scores[:8, 0].detach())"
    file = SourceFile("train.py", [code])
    kept = kept_at(file, 1, "firsts")
    assert kept is not None
    (change,) = keep_copies(file, kept.value, "firsts").changes
    assert isinstance(change, CodeEdit)
    assert change.new == "firsts.append(scores[:8, 0].detach().clone())"
    assert "history.append(loss.detach().clone())" in str(fix_of("history.append(loss)", how=CLONED).changes)


@pytest.mark.parametrize(
    ("code", "name", "kept"),
    [
        ("self.history.append(loss)", "history", "loss"),
        ("store.append(loss)", "outputs['a']", "loss"),
        ("a.append(x); history.append(loss)", "history", "loss"),
        ("history.setdefault(key, []).append(loss)", "history['a']", "loss"),
        ("queue.put(\n    loss\n)", "queue", "loss"),
        ("cache[key] = loss", "cache", "loss"),
        ("total += loss", "total", "loss"),
        ("self.total = self.total + loss", "total", "loss"),
        ("total = loss + total", "total", "loss"),
        ("out, state = cell(x, state)", "state", None),
        ("state = cell(x, state)", "state", None),
        ("bank = torch.cat([bank, x])", "bank", "torch.cat([bank, x])"),
        ("for x in data:\n    history.append(x)", "history", None),
        ("a.append(x); b.append(y)", "history", None),
        ("log.info('loss', loss)", "records", None),
    ],
)
def test_what_the_line_that_was_seen_keeps(code: str, name: str, kept: str | None) -> None:
    found = kept_at(SourceFile("train.py", code.splitlines()), 1, name)
    assert (found and ast.unparse(found.value)) == kept
