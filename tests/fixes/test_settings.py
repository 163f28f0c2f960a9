"""Arguments set in the calls that make a loader or a scaler, and the command that proves a batch size."""

import pytest

from efprof.fixes.settings import loader_setting, prove_by_fit, set_loader_arguments, set_scaler_arguments
from efprof.model import Change, CodeEdit, ConfigurationValue, SourceFile
from efprof.units import GIB, MIB


def test_the_command_that_proves_a_batch_says_where_the_size_goes() -> None:
    assert prove_by_fit(["python", "train.py", "--name", "my run"], 900 * MIB) == (
        "`efprof fit --budget 900MiB -- python train.py --name 'my run'` measures the largest that fits; write "
        "`{batch}` where the command sets its size."
    )
    assert "--budget 35GiB" in prove_by_fit(["python"], 35 * GIB)


LOADER = {"num_workers": 0, "persistent_workers": False}


def loader_changes(source, line=1, **new):
    return set_loader_arguments(SourceFile("train.py", source.splitlines()), line, old=LOADER, new=new)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("loader = DataLoader(data)", "loader = DataLoader(data, num_workers=3)"),
        (
            "loader = DataLoader(data, num_workers=0, shuffle=True)",
            "loader = DataLoader(data, num_workers=3, shuffle=True)",
        ),
        ("x = torch.utils.data.DataLoader(f(a, b), 16)", "x = torch.utils.data.DataLoader(f(a, b), 16, num_workers=3)"),
        ("x = DataLoader('größe', num_workers=0)  # é", "x = DataLoader('größe', num_workers=3)  # é"),
    ],
)
def test_a_loader_s_argument_is_set_in_the_call(before, after):
    (edit,) = loader_changes(before, num_workers=3)
    assert (edit.old, edit.new) == (before, after)


def test_a_call_over_several_lines_keeps_its_form_and_arguments_are_added_behind_the_last():
    source = "loader = DataLoader(\n    data,\n    num_workers=0,\n    shuffle=True,\n)"
    (edit,) = loader_changes(source, num_workers=2, persistent_workers=True)
    assert edit == CodeEdit(
        file="train.py",
        line=1,
        old=source,
        new="loader = DataLoader(\n    data,\n    num_workers=2,\n    shuffle=True, persistent_workers=True,\n)",
    )


def test_a_computed_argument_is_a_setting_under_its_own_name_and_so_is_one_without_text():
    (setting,) = loader_changes("loader = DataLoader(data, num_workers=config.loader.workers)", num_workers=3)
    assert (setting.name, setting.old, setting.new) == ("config.loader.workers", "0", "3")
    assert len(set_loader_arguments(SourceFile("train.py"), 4, old=LOADER, new={"num_workers": 3})) == 1


@pytest.mark.parametrize("source", ["x = DataLoader(data, **options)", "x = DataLoader(a, b, c, d, e, 0)"])
def test_a_call_whose_arguments_are_not_written_there_is_not_edited(source):
    assert loader_changes(source, num_workers=3) == (
        ConfigurationValue(name="num_workers", old="0", new="3", file="train.py"),
    )


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("DataLoader(data, batch_size=args.size)", "args.size"),
        ("DataLoader(data, batch_size=16)", "batch_size"),
        ("DataLoader(data, 16, shuffle=True)", "batch_size"),
    ],
)
def test_the_setting_has_the_name_that_the_source_gives_it(call, name):
    text = f"loader = {call}"
    setting = loader_setting(SourceFile("train.py", [text]), 1, "batch_size", 16, 64)
    assert (setting.name, setting.old, setting.new) == (name, "16", "64")


SCALER: dict[str, object] = {"init_scale": 65536.0, "growth_interval": 10}
NEW_SCALER: dict[str, object] = {"init_scale": 1024.0, "growth_interval": 2000}


def scaler_changes(source: str, *imports: str) -> tuple[Change, ...]:
    return set_scaler_arguments(SourceFile("train.py", [source, *imports]), 1, old=SCALER, new=NEW_SCALER)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("GradScaler()", "GradScaler(init_scale=1024.0, growth_interval=2000)"),
        ("GradScaler('cuda', growth_interval=10)", "GradScaler('cuda', growth_interval=2000, init_scale=1024.0)"),
        ("ShardedGradScaler(init_scale=1e9)", "ShardedGradScaler(init_scale=1024.0, growth_interval=2000)"),
    ],
)
def test_a_scaler_s_arguments_are_set_by_name(old: str, new: str) -> None:
    (change,) = scaler_changes(f"scaler = {old}  # mine", "from torch.amp import GradScaler")
    assert isinstance(change, CodeEdit)
    assert change.new == f"scaler = {new}  # mine"


@pytest.mark.parametrize(
    "call",
    [
        "torch.amp.GradScaler('cuda', 65536.0)", "torch.cuda.amp.GradScaler(scale)", "torch.cpu.amp.GradScaler(scale)",
        "GradScaler(2.0**16)", "GradScaler(start)", "GradScaler(device)", "GradScaler(**given)",
    ],
)  # fmt: skip
def test_a_scale_that_is_given_by_its_place_or_unseen_is_not_set_twice(call: str) -> None:
    assert scaler_changes(call) == (
        ConfigurationValue(name="init_scale", old="65536.0", new="1024.0", file="train.py"),
        ConfigurationValue(name="growth_interval", old="10", new="2000", file="train.py"),
    )


@pytest.mark.parametrize("call", ["Accelerator(mixed_precision='fp16')", "GradScaler(), GradScaler()"])
def test_where_no_single_call_makes_the_scaler_no_file_is_named(call: str) -> None:
    assert {change.file for change in scaler_changes(call)} == {None}
