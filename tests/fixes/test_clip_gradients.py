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


def test_clips_ahead_of_the_step_where_the_parameters_are_plain_and_it_is_not_there_already() -> None:
    code = "optimizer = SGD(model.parameters())\n" + LOOP
    fix = clip_gradients(SourceFile("train.py", code.splitlines()), 4, 0.3871)
    new = "    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.39)\n    optimizer.step()"
    assert fix.changes == (CodeEdit(file="train.py", line=6, old="    optimizer.step()", new=new),)
    assert fix.applicability == "review"
    fix = clip_gradients(SourceFile("train.py", LOOP.splitlines()), 3, 12.3)
    assert (fix.applicability, fix.changes) == ("manual", ())
    assert "12" in fix.summary
    code = LOOP.replace("scheduler.step()", "torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)")
    fix = clip_gradients(SourceFile("train.py", code.splitlines()), 3, 1.0)
    assert fix.changes == ()
    assert "learning rate" in fix.summary
