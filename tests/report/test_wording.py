"""Phrases that every rendering shares."""

from efprof.model import CodeEdit, ConfigurationValue
from efprof.report.wording import changes_to_make

SETTING = ConfigurationValue(name="num_workers", old="0", new="1", file="train.py")
EDIT = CodeEdit(file="train.py", line=9, old="DataLoader(data)", new="DataLoader(data, num_workers=1)")


def test_a_setting_that_an_edit_holds_is_shown_once() -> None:
    assert changes_to_make((SETTING, EDIT)) == (EDIT,)


def test_a_setting_that_no_edit_holds_is_shown() -> None:
    elsewhere = ConfigurationValue(name="num_workers", old="0", new="1", file="config.toml")
    other_value = ConfigurationValue(name="num_workers", old="0", new="2", file="train.py")
    assert changes_to_make((SETTING,)) == (SETTING,)
    assert changes_to_make((elsewhere, other_value, EDIT)) == (elsewhere, other_value, EDIT)
