"""Clipping put in ahead of the optimizer's step."""

from efprof.fixes.keep_finite import clip_gradients
from efprof.model import CodeEdit, SourceFile

LOOP = """\
for x, y in loader:
    loss = model(x)
    loss.backward()
    scheduler.step()
    optimizer.step()
"""


def test_clips_at_the_usual_norm_ahead_of_the_optimizers_step() -> None:
    code = "optimizer = SGD(model.parameters())\n" + LOOP
    fix = clip_gradients(SourceFile("train.py", code.splitlines()), 4, 0.3871)
    new = "    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.39)\n    optimizer.step()"
    assert fix.changes == (CodeEdit(file="train.py", line=6, old="    optimizer.step()", new=new),)
    assert fix.applicability == "review"


def test_says_only_the_value_where_the_parameters_are_not_plain_to_see() -> None:
    fix = clip_gradients(SourceFile("train.py", LOOP.splitlines()), 3, 12.3)
    assert (fix.applicability, fix.changes) == ("manual", ())
    assert "12" in fix.summary


def test_never_suggests_clipping_that_is_there_already() -> None:
    code = LOOP.replace("scheduler.step()", "torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)")
    fix = clip_gradients(SourceFile("train.py", code.splitlines()), 3, 1.0)
    assert fix.changes == ()
    assert "learning rate" in fix.summary
