"""Statements that keep tensors, changed to keep less."""

import ast

import pytest

from efprof.fixes.keep_less import CLONED, DETACHED, keep_copies, keep_fewer, keep_without_graph, kept_at, known_advice
from efprof.model import CodeEdit, Fix, SourceFile


def fix_of(code: str, entry: str = "Tensor", *, kind: str = "list", how: str = DETACHED) -> Fix:
    """The fix of the first line, with entries of these types."""
    file = SourceFile("train.py", code.splitlines())
    kept = kept_at(file, 1, "history")
    assert kept is not None
    return keep_without_graph(file, kept, name="history", kind=kind, entry=entry.split(), how=how)


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


def test_a_carried_state_is_cut_where_it_enters_the_call() -> None:
    code = "out, history = rnn(x, history)"
    tensor = fix_of(code, kind="Tensor")
    assert tensor.changes == (
        CodeEdit(file="train.py", line=1, old=code, new="out, history = rnn(x, history.detach())"),
    )
    pair = fix_of(code, kind="tuple")
    assert "rnn(x, tuple(part.detach() for part in history))" in str(pair.changes)
    assert tensor.applicability == "review"


def test_what_is_added_to_a_tensor_is_one_and_an_unknown_statement_is_left_to_a_person() -> None:
    assert "history += loss.detach()" in str(fix_of("history += loss", "", kind="Tensor").changes)
    fix = keep_without_graph(SourceFile("train.py"), None, name="history", kind="list", entry=["Tensor"], how=DETACHED)
    assert (fix.applicability, fix.changes) == ("manual", ())


def bound(name: str, kind: str, most: int, unit: str = "entries") -> str:
    """What is said where so many of its entries take 1 %."""
    return keep_fewer([name], kind, most, unit, are_numbers=True, is_device=False).summary


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("deque", "give it `maxlen=500`, keep"),
        ("Queue", "give it `maxsize=500`, so that `put` waits, keep"),
        ("lru_cache", "`@lru_cache(maxsize=500)`"),
        ("OrderedDict", "drop the oldest entries beyond 500,"),
        ("Keeper", "Bound `history`: keep numbers"),
    ],
)
def test_each_kind_of_container_is_bounded_in_its_own_way(kind: str, expected: str) -> None:
    assert expected in bound("history", kind, 500)


def test_a_bound_tells_what_takes_a_hundredth_of_the_memory_in_its_own_unit() -> None:
    assert bound("history", "list", 500).endswith("now and then. 500 entries take 1 % of memory.")
    summaries = [bound("bank", kind, 1500, unit) for kind, unit in (("list", "tensors"), ("Tensor", "steps"))]
    assert not any("maxlen" in summary for summary in summaries)
    assert summaries[0].endswith("1,500 tensors take 1 % of memory.")
    assert summaries[1].endswith("What 1,500 steps add takes 1 % of memory.")


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
    ("code", "name", "kept", "carried"),
    [
        ("self.history.append(loss)", "history", "loss", None),
        ("store.append(loss)", "outputs['a']", "loss", None),
        ("a.append(x); history.append(loss)", "history", "loss", None),
        ("history.setdefault(key, []).append(loss)", "history['a']", "loss", None),
        ("queue.put(\n    loss\n)", "queue", "loss", None),
        ("cache[key] = loss", "cache", "loss", None),
        ("total += loss", "total", "loss", None),
        ("self.total = self.total + loss", "total", "loss", None),
        ("total = loss + total", "total", "loss", None),
        ("out, state = cell(x, state)", "state", "cell(x, state)", "state"),
        ("bank = torch.cat([bank, x])", "bank", "torch.cat([bank, x])", None),
        ("for x in data:\n    history.append(x)", "history", None, None),
        ("a.append(x); b.append(y)", "history", None, None),
        ("log.info('loss', loss)", "records", None, None),
    ],
)
def test_what_the_line_that_was_seen_keeps(code: str, name: str, kept: str | None, carried: str | None) -> None:
    found = kept_at(SourceFile("train.py", code.splitlines()), 1, name)
    assert (found and ast.unparse(found.value)) == kept
    assert (found and found.carried and ast.unparse(found.carried)) == carried


def test_of_a_repeated_loader_in_a_for_statement_the_line_alone_tells_what_to_do() -> None:
    advice = known_advice("for step, batch in zip(range(9), itertools.cycle(loader)):")
    assert advice is not None
    assert "while True: yield from loader" in advice
    assert known_advice("for step, batch in enumerate(loader):") is None
