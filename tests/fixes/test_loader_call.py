import pytest

from efprof.fixes.settings import loader_setting, set_loader_arguments
from efprof.model import CodeEdit, ConfigurationValue, SourceFile

OLD = {"num_workers": 0, "persistent_workers": False}


def change(source, line=1, **new):
    return set_loader_arguments(SourceFile("train.py", source.splitlines()), line, old=OLD, new=new)


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
        ("super().__init__(data, num_workers=0)", "super().__init__(data, num_workers=3)"),
    ],
)
def test_the_argument_is_set_in_the_call(before, after):
    (edit,) = change(before, num_workers=3)
    assert (edit.old, edit.new) == (before, after)


def test_a_call_over_several_lines_keeps_its_form_and_arguments_are_added_behind_the_last():
    source = "loader = DataLoader(\n    data,\n    num_workers=0,\n    shuffle=True,\n)"
    (edit,) = change(source, num_workers=2, persistent_workers=True)
    assert edit == CodeEdit(
        file="train.py",
        line=1,
        old=source,
        new="loader = DataLoader(\n    data,\n    num_workers=2,\n    shuffle=True, persistent_workers=True,\n)",
    )
    (edit,) = change("x = DataLoader(data, num_workers=0)", num_workers=2, persistent_workers=True)
    assert edit.new == "x = DataLoader(data, num_workers=2, persistent_workers=True)"


def test_a_computed_argument_is_a_setting_under_its_own_name_and_so_is_one_without_text():
    (setting,) = change("loader = DataLoader(data, num_workers=config.loader.workers)", num_workers=3)
    assert (setting.name, setting.old, setting.new) == ("config.loader.workers", "0", "3")
    assert len(set_loader_arguments(SourceFile("train.py"), 4, old=OLD, new={"num_workers": 3})) == 1


@pytest.mark.parametrize(
    "source", ["x = DataLoader(data, **options)", "x = DataLoader(a, b, c, d, e, 0)", "x = make(data)"]
)
def test_a_call_whose_arguments_are_not_written_there_is_not_edited(source):
    assert change(source, num_workers=3) == (ConfigurationValue(name="num_workers", old="0", new="3", file="train.py"),)


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
