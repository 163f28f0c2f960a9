import ast

import pytest

from efprof.fixes.scalar_read import keep_on_device, read_less
from efprof.model import SourceFile


def edit(source, line=None):
    lines = source.splitlines()
    return keep_on_device(SourceFile("train.py", lines), line or len(lines))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("total += loss.item()", "total += loss.detach()"),
        ("total += loss.detach().cpu().item()  # sum", "total += loss.detach()  # sum"),
        ("total += float(loss)", "total += loss.detach()"),
        ("total += loss.item() * len(x)", "total += loss.detach() * len(x)"),
        ("total += (a - b).item() / n", "total += (a - b).detach() / n"),
        ("self.losses.append(loss.item())", "self.losses.append(loss.detach())"),
        ("verluste['größe'] += loss.item()", "verluste['größe'] += loss.detach()"),
    ],
)
def test_a_value_that_is_only_kept_stays_on_the_device(before, after):
    found = edit(before)
    assert (found.old, found.new) == (before, after)
    ast.parse(found.new)


@pytest.mark.parametrize(
    "source",
    [
        "value = loss.item()",
        "total -= loss.item()",
        "total += loss.item() * w.item()",
        "f(loss.item())",
        "x += g(y)",
        "accuracies.append(right.item() / max(1, mask.sum().item()))",
        "total += float(loss.item())",
    ],
)
def test_any_other_form_is_left_alone(source):
    assert edit(source) is None


def test_without_the_file_s_text_the_fix_is_a_sentence():
    fix = read_less(SourceFile("train.py"), 3, calls=["item"], reads_per_step=12.0, every=40)
    assert (fix.applicability, fix.changes) == ("manual", ())
    assert fix.summary.startswith("Collect the step's 12 values on the device (`torch.stack`) and read them at once. ")
    assert fix.summary.endswith(" Read once in 40 steps, it costs next to nothing.")
