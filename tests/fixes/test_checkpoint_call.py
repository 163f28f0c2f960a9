"""The edit that puts a call under activation checkpointing, and where it is better left to a person."""

import ast

import pytest

from efprof.fixes.step_calls import checkpoint_call
from efprof.model import SourceFile

HEAD = "import torch\nfrom torch.nn import functional\n"


def edited(line: str, head: str = HEAD) -> str | None:
    """The last line after the edit."""
    text = head + line
    lines = text.splitlines()
    edit = checkpoint_call(SourceFile("model.py", lines), len(lines))
    return None if edit is None else edit.new


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("y = self.block(x)", "y = torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)"),
        (
            "y = blocks[i](x, mask=m)",
            "y = torch.utils.checkpoint.checkpoint(blocks[i], x, mask=m, use_reentrant=False)",
        ),
        (
            "loss = functional.mse_loss(self.features(x), y)",
            "loss = functional.mse_loss(torch.utils.checkpoint.checkpoint(self.features, x, use_reentrant=False), y)",
        ),
        (
            "y = self.head(x.mean(1))",
            "y = torch.utils.checkpoint.checkpoint(self.head, x.mean(1), use_reentrant=False)",
        ),
    ],
)
def test_the_one_call_of_the_users_is_wrapped(line: str, expected: str) -> None:
    assert edited(line) == expected
    ast.parse(expected)


@pytest.mark.parametrize(
    "line",
    [
        "y = self.second(self.first(x))",
        "y = functional.relu(x)",
        "y = x.view(2, 3)",
        "y = len(x)",
        "y = self.block(*parts)",
        "y = self.block()",
        "y = x + 1",
    ],
)
def test_a_line_without_exactly_one_plain_call_is_left_to_a_person(line: str) -> None:
    assert edited(line) is None


def test_a_file_that_does_not_know_torch_by_name_is_left_to_a_person() -> None:
    assert edited("y = self.block(x)", head="from torch import nn\n") is None
