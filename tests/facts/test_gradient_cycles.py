"""Which calls of backward leave a tensor of the step with a gradient whose graph leads back to it."""

from pathlib import Path

import pytest

from efprof.facts.gradient_cycles import GradientCycle, GradientCycles
from tests.builders import make_steps, write_run

STEP = """\
def step(model, optimizer, x):
    x.requires_grad_()
    out = model(x).sum()
    out.backward(create_graph=True)
    penalty = x.grad.square().mean()
    optimizer.zero_grad()
    penalty.backward()
    optimizer.step()


for x in loader:
    step(model, optimizer, x)
"""
BACKWARD = "train.py:7:step"
FOUND = (GradientCycle(site="train.py:4:step", tensor="x", made_at="train.py:2:step"),)


def found_in(folder: Path, text: str) -> tuple[GradientCycle, ...]:
    steps = make_steps(3, backward_site=BACKWARD)
    return write_run(folder, steps=steps, sources={"train.py": text}).get(GradientCycles).found


@pytest.mark.parametrize(
    "leaf",
    [
        "x.requires_grad_()",
        "x.requires_grad_(True)",
        "x.requires_grad = True",
        "x = torch.randn(9, requires_grad=True)",
    ],
)
def test_the_call_and_the_leaf_are_named(leaf: str, tmp_path: Path) -> None:
    assert found_in(tmp_path, STEP.replace("x.requires_grad_()", leaf)) == FOUND


def test_torch_s_own_function_counts_as_well(tmp_path: Path) -> None:
    text = STEP.replace("out.backward(", "torch.autograd.backward(out, ")
    assert found_in(tmp_path, text) == FOUND


@pytest.mark.parametrize("line", ["x.grad = None", "del x.grad", "x.grad.detach_()"])
def test_a_gradient_that_is_taken_away_keeps_nothing(line: str, tmp_path: Path) -> None:
    assert found_in(tmp_path, STEP.replace("    optimizer.step()\n", f"    optimizer.step()\n    {line}\n")) == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("out.backward(create_graph=True)", "out.backward()"),
        ("out.backward(create_graph=True)", "out.backward(create_graph=False)"),
        ("x.requires_grad_()", "x.requires_grad_(False)"),
        ("    x.requires_grad_()\n", "\n"),
    ],
)
def test_without_a_graph_or_a_leaf_there_is_none(old: str, new: str, tmp_path: Path) -> None:
    assert found_in(tmp_path, STEP.replace(old, new)) == ()


@pytest.mark.parametrize("given", ["inputs=list(model.parameters())", "inputs=[x]"])
def test_where_the_call_names_what_gets_gradients_nothing_is_claimed(given: str, tmp_path: Path) -> None:
    text = STEP.replace("backward(create_graph=True)", f"backward(create_graph=True, {given})")
    assert found_in(tmp_path, text) == ()


@pytest.mark.parametrize(
    "toggle",
    [
        "model.requires_grad_(True)",
        "self.critic.requires_grad_()",
        "nets['critic'].requires_grad_(True)",
        "critic = nets['critic']; critic.requires_grad_()",
        "model.to(device).requires_grad_()",
    ],
)
def test_a_module_that_is_thawed_is_no_leaf(toggle: str, tmp_path: Path) -> None:
    assert found_in(tmp_path / "alone", STEP.replace("x.requires_grad_()", toggle)) == ()
    (beside,) = found_in(tmp_path / "beside", STEP.replace("out = model", f"{toggle}; out = model"))
    assert beside.tensor == "x"


@pytest.mark.parametrize("parts", ["model.parameters()", "list(model.parameters())", "weights", "[model, other]"])
def test_parameters_that_are_thawed_one_by_one_are_no_leaves(parts: str, tmp_path: Path) -> None:
    loop = f"for one in {parts}: one.requires_grad_()"
    assert found_in(tmp_path, STEP.replace("x.requires_grad_()", loop)) == ()


@pytest.mark.parametrize(
    "bound",
    [
        "y = x.clone()",
        "y = x.to(device)",
        "y = x[:9]",
        "y, z = x, model(x)",
        "y = torch.randn(9)",
        "y = x if z else x + 1",
    ],
)
def test_what_the_step_makes_of_its_batch_is_a_leaf(bound: str, tmp_path: Path) -> None:
    (found,) = found_in(tmp_path, STEP.replace("x.requires_grad_()", f"{bound}; y.requires_grad_()"))
    assert found.tensor == "y"


def test_of_two_leaves_none_is_named(tmp_path: Path) -> None:
    text = STEP.replace("x.requires_grad_()", "y = x.clone(); y.requires_grad_(); x.requires_grad_()")
    assert found_in(tmp_path, text) == ()


def test_what_is_made_before_the_steps_is_one_tensor_for_all_of_them(tmp_path: Path) -> None:
    text = STEP.replace("    x.requires_grad_()\n", "\n").replace("for x in", "y.requires_grad_()\nfor x in")
    assert found_in(tmp_path, text) == ()
