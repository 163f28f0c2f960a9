"""Phrases that every rendering shares."""

from typing import Any

from efprof.model import CodeEdit, ConfigurationValue, Gain
from efprof.report.wording import changes_to_make, gain_phrase

SETTING = ConfigurationValue(name="num_workers", old="0", new="1", file="train.py")
EDIT = CodeEdit(file="train.py", line=9, old="DataLoader(data)", new="DataLoader(data, num_workers=1)")


def test_a_setting_that_an_edit_holds_is_shown_once() -> None:
    assert changes_to_make((SETTING, EDIT)) == (EDIT,)


def test_a_setting_that_no_edit_holds_is_shown() -> None:
    elsewhere = ConfigurationValue(name="num_workers", old="0", new="1", file="config.toml")
    other_value = ConfigurationValue(name="num_workers", old="0", new="2", file="train.py")
    assert changes_to_make((SETTING,)) == (SETTING,)
    assert changes_to_make((elsewhere, other_value, EDIT)) == (elsewhere, other_value, EDIT)


def test_a_setting_whose_text_is_only_part_of_another_one_in_the_edit_is_shown() -> None:
    edit = CodeEdit(file="train.py", line=9, old="Loader(data)", new="Loader(data, batch_size=32, share=0.5)")
    others = [("batch_size", "3"), ("size", "32"), ("share", "0")]
    settings = tuple(ConfigurationValue(name=name, old="1", new=new, file="train.py") for name, new in others)
    assert changes_to_make((*settings, edit)) == (*settings, edit)
    assert changes_to_make((ConfigurationValue(name="share", old="1", new="0.5", file="train.py"), edit)) == (edit,)


def phrase(**fields: Any) -> str:
    return gain_phrase(Gain(explanation="", **fields))


def test_what_was_read_up_to_a_step_only_is_the_least_of_the_whole_run() -> None:
    bound = {"basis": "measured bound", "peak_bytes": 300, "until_step": 1023}
    assert phrase(**bound, peak_bytes_interval=(250.0, 390.0)) == (
        "saves at least 250 B of peak memory up to step 1,023, by measured bound"
    )
    assert phrase(**bound, peak_bytes_interval=(0.0, 390.0)) == (
        "saves about 300 B (0 B to 390 B) of peak memory up to step 1,023, by measured bound"
    )


def test_a_bound_whose_interval_reaches_beyond_it_is_no_upper_limit() -> None:
    bound = {"basis": "measured bound", "peak_bytes": 300}
    assert phrase(**bound).startswith("saves up to 300 B")
    assert phrase(**bound, peak_bytes_interval=(250.0, 300.0)).startswith("saves up to 300 B")
    assert phrase(**bound, peak_bytes_interval=(250.0, 390.0)) == (
        "saves about 300 B (250 B to 390 B) of peak memory, by measured bound"
    )
    assert phrase(basis="measured bound", step_ms=2.0, step_ms_interval=(1.0, 3.0)).startswith("saves about 2.00 ms")
