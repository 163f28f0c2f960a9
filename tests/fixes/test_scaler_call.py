"""Arguments set in the call that makes a gradient scaler."""

import pytest

from efprof.fixes.settings import set_scaler_arguments
from efprof.model import Change, CodeEdit, ConfigurationValue, SourceFile

OLD: dict[str, object] = {"init_scale": 65536.0, "growth_interval": 10}
NEW: dict[str, object] = {"init_scale": 1024.0, "growth_interval": 2000}


def changes_of(source: str, *imports: str) -> tuple[Change, ...]:
    return set_scaler_arguments(SourceFile("train.py", [source, *imports]), 1, old=OLD, new=NEW)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("GradScaler()", "GradScaler(init_scale=1024.0, growth_interval=2000)"),
        ("torch.amp.GradScaler('cuda')", "torch.amp.GradScaler('cuda', init_scale=1024.0, growth_interval=2000)"),
        ("GradScaler(device, growth_interval=10)", "GradScaler(device, growth_interval=2000, init_scale=1024.0)"),
        ("ShardedGradScaler(init_scale=1e9)", "ShardedGradScaler(init_scale=1024.0, growth_interval=2000)"),
    ],
)
def test_arguments_are_set_by_name(old: str, new: str) -> None:
    (change,) = changes_of(f"scaler = {old}  # mine", "from torch.amp import GradScaler")
    assert isinstance(change, CodeEdit)
    assert change.new == f"scaler = {new}  # mine"


@pytest.mark.parametrize(
    "call",
    [
        "torch.amp.GradScaler('cuda', 65536.0)", "torch.cuda.amp.GradScaler(scale)", "torch.cpu.amp.GradScaler(scale)",
        "GradScaler(2.0**16)", "GradScaler(start)", "GradScaler(**given)",
    ],
)  # fmt: skip
def test_a_scale_that_is_given_by_its_place_or_unseen_is_not_set_twice(call: str) -> None:
    assert changes_of(call) == (
        ConfigurationValue(name="init_scale", old="65536.0", new="1024.0", file="train.py"),
        ConfigurationValue(name="growth_interval", old="10", new="2000", file="train.py"),
    )


def test_a_computed_argument_is_a_setting_under_its_own_name() -> None:
    changes = changes_of("GradScaler(growth_interval=options.interval)")
    assert changes[1] == ConfigurationValue(name="options.interval", old="10", new="2000", file="train.py")


@pytest.mark.parametrize("call", ["Accelerator(mixed_precision='fp16')", "GradScaler(), GradScaler()"])
def test_where_no_single_call_makes_the_scaler_no_file_is_named(call: str) -> None:
    assert {change.file for change in changes_of(call)} == {None}
