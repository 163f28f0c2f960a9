"""Operands kept where their operation is finite, and clipping put in ahead of the optimizer's step."""

import pytest

from efprof.fixes.keep_finite import clip_gradients, keep_operand_finite, keep_update_finite
from efprof.model import CodeEdit, Fix, SourceFile


def fix_of(operation: str, code: str, dtype: str = "float32", line: int | None = 1) -> Fix:
    """The fix of an operation that `code` calls on its first line."""
    return keep_operand_finite(operation, dtype, SourceFile("train.py", code.splitlines()), line)


@pytest.mark.parametrize(
    ("operation", "code", "expected"),
    [
        ("log", "loss = -p.log().mean()", "loss = -p.clamp_min(1e-06).log().mean()"),
        ("log", "loss = torch.log(p / q)", "loss = torch.log((p / q).clamp_min(1e-06))"),
        ("sqrt", "s = var.sqrt()", "s = var.clamp_min(1e-06).sqrt()"),
        ("div", "y = x / x.sum(-1, keepdim=True)", "y = x / x.sum(-1, keepdim=True).clamp_min(1e-06)"),
        ("div", "y = torch.div(x, n)", "y = torch.div(x, n.clamp_min(1e-06))"),
        ("div", "y = x.div(n + m)", "y = x.div((n + m).clamp_min(1e-06))"),
        ("pow", "y = x ** 0.5", "y = x.clamp_min(1e-06) ** 0.5"),
        ("exp", "std = torch.exp(0.5 * logvar)", "std = torch.exp((0.5 * logvar).clamp_max(30))"),
        ("acos", "angle = torch.acos(c)", "angle = torch.acos(c.clamp(-0.999999, 0.999999))"),
        ("log", "größe = maß.log()", "größe = maß.clamp_min(1e-06).log()"),
    ],
)
def test_bounds_the_operand_on_its_line(operation: str, code: str, expected: str) -> None:
    fix = fix_of(operation, code)
    assert fix.changes == (CodeEdit(file="train.py", line=1, old=code, new=expected),)
    assert fix.applicability == "review"


@pytest.mark.parametrize(("dtype", "is_narrow"), [("float32", False), ("float64", False), ("bfloat16", True)])
def test_parameters_of_half_precision_alone_are_to_be_kept_in_float32(dtype: str, is_narrow: bool) -> None:
    summary = keep_update_finite("Adam", 1e-8, dtype).summary
    assert summary.startswith("Check the settings of `Adam` (learning rate, eps)")
    assert ("keep the parameters in float32" in summary) is is_narrow


def test_half_precision_gets_a_bound_it_can_hold() -> None:
    assert "clamp_min(0.0001)" in str(fix_of("log", "y = x.log()", "float16").changes)
    assert "clamp_max(5)" in str(fix_of("exp", "y = x.exp()", "float16").changes)
    assert "clamp(-0.999, 0.999)" in str(fix_of("asin", "y = x.asin()", "float16").changes)


def test_what_is_not_plain_or_without_a_remedy_gets_no_edit() -> None:
    fix = fix_of("log", "loss = 0.5.log()")
    assert (fix.applicability, fix.changes) == ("manual", ())
    assert fix_of("log", "loss = p.log()", line=None).changes == ()
    assert fix_of("div", "y = x / 0.0").changes == ()
    assert "addmm" in fix_of("addmm", "y = layer(x)").summary


def test_gradients_are_clipped_at_their_usual_norm_to_two_digits() -> None:
    fix = clip_gradients(0.3871)
    assert (fix.applicability, fix.changes) == ("manual", ())
    assert "max_norm=0.39" in fix.summary


def test_a_clip_that_is_there_is_to_be_lowered_or_did_not_hold() -> None:
    assert clip_gradients(0.39, ("train.py:7", 1000.0)).summary.startswith(
        "Lower the limit at train.py:7 from 1000 to 0.39"
    )
    assert clip_gradients(0.39, ("train.py:7", 0.5)).summary.startswith("Clipping at train.py:7 did not hold them")


def test_of_several_divisions_on_a_line_each_is_bounded_unless_one_lies_in_another() -> None:
    (edit,) = fix_of("div", "ratio = torch.atan(w / h) - torch.atan(a / b.sum())").changes
    assert isinstance(edit, CodeEdit)
    assert edit.new == "ratio = torch.atan(w / h.clamp_min(1e-06)) - torch.atan(a / b.sum().clamp_min(1e-06))"
    assert fix_of("div", "ratio = a / (b / c)").changes == ()


def test_a_divisor_that_may_be_negative_elsewhere_keeps_its_sign() -> None:
    (edit,) = fix_of("div", "y = x / d").changes
    assert isinstance(edit, CodeEdit)
    assert edit.new == "y = x / d.where(d.abs() > 1e-06, 1e-06)"
    assert fix_of("div", "y = x / (a - b)").changes == ()
