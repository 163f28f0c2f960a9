"""Statements that keep tensors, changed to keep less."""

import ast

import pytest

from efprof.fixes.keep_less import Bound, KeepingStatement, keep_copy_of_part, keep_fewer, keep_without_graph
from efprof.model import CodeEdit, Fix, SourceLine
from efprof.units import KIB

READER = SourceLine(file="train.py", line=9, function="train", text="torch.stack(history).sum().backward()")


def fix_of(
    code: str,
    value: str,
    *,
    carried: str | None = None,
    kind: str = "list",
    is_read: bool = False,
    tensors: float = 0.0,
    others: tuple[str, ...] = (),
) -> Fix:
    """The fix of a statement that keeps the expression spelled `value`; `tensors` is their share of what it keeps."""
    tree = ast.parse(code)
    found: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and not isinstance(getattr(node, "ctx", None), ast.Store):
            found.setdefault(ast.unparse(node), node)
    statement = KeepingStatement(
        file="train.py",
        line=1,
        names=("history",),
        kind=kind,
        value=found[value],
        carried=found[carried] if carried else None,
        readers=(READER,) if is_read else (),
        bytes_per_step=100 * KIB,
        tensor_bytes_per_step=100 * KIB * tensors,
    )
    return keep_without_graph(statement, code.splitlines(), tree, [ast.parse(other) for other in others])


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
        ("history.append(loss); loss.backward()", "loss", "history.append(loss.detach()); loss.backward()"),
        ("history.append(-loss)", "-loss", "history.append((-loss).detach())"),
        ("history.append(states[:, 0])", "states[:, 0]", "history.append(states[:, 0].detach())"),
        ("total += loss * n", "loss * n", "total += (loss * n).detach()"),
        ("losses += [y]; (y - x.roll(1)).mean()", "[y]", "losses += [y.detach()]; (y - x.roll(1)).mean()"),
        ("kept.append(z); z = F.mse_loss(y, x)", "z", "kept.append(z.detach()); z = F.mse_loss(y, x)"),
        ("kept.append(o.z); scaler.backward(o.z)", "o.z", "kept.append(o.z.detach()); scaler.backward(o.z)"),
        ("kept.append(z); F.mse_loss(z, x)", "z", "kept.append(z.detach()); F.mse_loss(z, x)"),
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
    fix = fix_of("history.append(loss); loss.backward()", "loss", is_read=True)
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


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("history.append(call)", "call"),
        ("history.append(model(x))", "model(x)"),
        ("history.append(lambda: loss)", "lambda: loss"),
        ("history.append(out.loss)", "out.loss"),
        ("history.append([loss] * 2)", "[loss] * 2"),
        ("history.extend(losses)", "losses"),
    ],
)
def test_what_may_be_no_tensor_is_left_to_a_person(code: str, value: str) -> None:
    fix = fix_of(code, value)
    assert (fix.applicability, fix.changes) == ("manual", ())


def test_what_is_added_to_a_tensor_is_one() -> None:
    assert "total += loss.detach()" in str(fix_of("total += loss", "loss", kind="Tensor").changes)


KEEPER = "def keep(self, entry):\n    self.history.append(entry)\n"


@pytest.mark.parametrize(
    ("caller", "applicability"),
    [
        ("loss.backward()\nmeter.keep(loss)", "safe"),
        ("loss.backward()\nmeter.keep(entry=loss)", "safe"),
        ("loss.backward()\nmeter.keep(loss)\nmeter.keep(partial(energy, loss))", "manual"),
        ("meter.keep(loss)", "manual"),
        ("loss.backward()", "manual"),
    ],
)
def test_an_argument_is_a_tensor_where_every_caller_gives_one(caller: str, applicability: str) -> None:
    assert fix_of(KEEPER, "entry", others=(caller,)).applicability == applicability


@pytest.mark.parametrize(
    ("annotation", "applicability"), [("torch.Tensor", "safe"), ("Tensor", "safe"), ("list[Tensor]", "manual")]
)
def test_a_field_that_its_class_declares_as_a_tensor_is_one(annotation: str, applicability: str) -> None:
    losses = f"class Losses:\n    total: {annotation}\n"
    assert fix_of("history.append(losses.total)", "losses.total", others=(losses,)).applicability == applicability


def test_says_what_detaching_leaves_where_the_tensors_are_much_of_it() -> None:
    left = "That leaves the tensors themselves, 30.0 KiB of 100 KiB per step: bound `history` as well"
    code = "history.append(loss); loss.backward()"
    assert left in fix_of(code, "loss", tensors=0.3).summary
    assert left in fix_of("history.append(call)", "call", tensors=0.3).summary
    assert "leaves" not in fix_of(code, "loss", tensors=0.05).summary


def bound(name: str, kind: str, most: int, unit: str = "entries", *, is_on_device: bool = True) -> Bound:
    """So many of its entries take 1 %."""
    return Bound(name=name, kind=kind, most=most, unit=unit, is_on_device=is_on_device)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("deque", "give it `maxlen=500`, keep"),
        ("Queue", "give it `maxsize=500`, so that `put` waits, keep"),
        ("PriorityQueue", "`maxsize=500`"),
        ("OrderedDict", "drop the oldest entries beyond 500,"),
        ("Keeper", "Bound `history`: keep numbers"),
    ],
)
def test_each_kind_of_container_is_bounded_in_its_own_way(kind: str, expected: str) -> None:
    assert expected in keep_fewer([bound("history", kind, 500)]).summary


def test_each_of_several_holders_has_a_bound_of_its_own() -> None:
    bounds = [bound("a", "list", 400), bound("b", "Queue", 80), bound("c", "Tensor", 9, "steps")]
    summary = keep_fewer(bounds).summary
    assert "`a` (make it `collections.deque(maxlen=400)`; 400 entries take 1 %)" in summary
    assert "`b` (give it `maxsize=80`, so that `put` waits; 80 entries take 1 %)" in summary
    assert "and `c` (What" not in summary
    assert "and `c` (what 9 steps add takes 1 %)" in summary
    assert "and 2 more; or keep numbers" in keep_fewer([*bounds, bounds[0]]).summary


def test_tensors_without_graphs_are_bounded_by_a_person() -> None:
    fix = keep_fewer([bound("history", "list", 500)])
    assert fix.applicability == "manual"
    assert "deque(maxlen=500)" in fix.summary
    assert fix.summary.endswith("off the device (`.cpu()`). 500 entries take 1 % of the memory there is.")


def test_a_bound_in_tensors_or_steps_is_no_length_of_the_container() -> None:
    summaries = [
        keep_fewer([bound("bank", kind, 1500, unit)]).summary
        for kind, unit in (("list", "tensors"), ("Tensor", "steps"))
    ]
    assert not any("maxlen" in summary for summary in summaries)
    assert summaries[0].endswith("1,500 tensors take 1 % of the memory there is.")
    assert summaries[1].endswith("What 1,500 steps add takes 1 % of the memory there is.")


def test_on_the_host_nothing_is_moved_off_a_device() -> None:
    summary = keep_fewer([bound("history", "list", 500, is_on_device=False)]).summary
    assert ".cpu()" not in summary
    assert "write it to disk" in summary


@pytest.mark.parametrize(
    ("kept", "copied"),
    [
        ("scores[:8, 0].detach()", "scores[:8, 0].detach().clone()"),
        ("scores[0]", "scores[0].clone()"),
        ("scores[-1, ...]", "scores[-1, ...].clone()"),
        ("scores[:8]", "scores[:8].clone()"),
        ("scores", None),
        ("scores[:]", None),
        ("scores[mask]", None),
        ("scores[[0, 1]]", None),
        ("scores[:8].clone()", None),
        ("batch[0]", None),
    ],
)
def test_of_a_slice_of_a_tensor_a_copy_is_kept(kept: str, copied: str | None) -> None:
    code = f"loss = functional.cross_entropy(scores, y)\nfirsts.append({kept})"
    tree = ast.parse(code)
    value = next(node.args[0] for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) == 1
                 and ast.unparse(node).startswith("firsts."))  # fmt: skip
    fix = keep_copy_of_part(["firsts"], "train.py", code.splitlines(), tree, value)
    assert (fix and fix.changes) == (
        (CodeEdit(file="train.py", line=2, old=f"firsts.append({kept})", new=f"firsts.append({copied})"),)
        if copied
        else None
    )
