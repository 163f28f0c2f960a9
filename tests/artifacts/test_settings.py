"""efprof.toml and [tool.efprof]: found, checked, and beaten by flags."""

from pathlib import Path

import pytest

from efprof.artifacts.settings import RecordSettings, Settings, merge, read_settings
from efprof.model import EfprofError


def write(folder: Path, text: str, name: str = "efprof.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


def test_without_a_file_nothing_is_set_and_the_nearest_one_upwards_is_read(tmp_path: Path) -> None:
    assert read_settings(tmp_path) == Settings()
    write(tmp_path, '[record]\nname = "far"\n')
    write(tmp_path / "project", '[record]\nname = "near"\nholders = true\n')
    (tmp_path / "project" / "source").mkdir()
    settings = read_settings(tmp_path / "project" / "source")
    assert settings.file == tmp_path / "project" / "efprof.toml"
    assert settings.record == RecordSettings(name="near", holders=True)


def test_a_table_in_pyproject_is_as_good(tmp_path: Path) -> None:
    write(tmp_path, '[tool.efprof.record]\ndiff = false\ntrace_steps = ["5:7", "9:10"]\n', "pyproject.toml")
    assert read_settings(tmp_path).record == RecordSettings(keeps_diff=False, trace_steps=["5:7", "9:10"])


def test_a_pyproject_without_our_table_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, '[record]\nname = "far"\n')
    write(tmp_path / "project", '[project]\ndependencies = ["efprof"]\n', "pyproject.toml")
    write(tmp_path / "project" / "broken", "not toml", "pyproject.toml")
    assert read_settings(tmp_path / "project" / "broken").record.name == "far"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[record]\nholder = true\n", "there is no setting 'record.holder'; did you mean 'record.holders'?"),
        ("[record]\nhost-memory = true\n", "no setting 'record.host-memory'; did you mean 'record.host_memory'?"),
        ("[record]\nbogus = 1\n", "there is no setting 'record.bogus'; there are "),
        ("[recrod]\n", "there is no setting 'recrod'; did you mean 'record'?"),
        ("config = 'a.toml'\n", "there is no setting 'config'; did you mean 'configuration'?"),
        ("[record]\nholders = 'yes'\n", "'record.holders' is wrong: expected `bool`, got `str`."),
        ("record = 3\n", "'record' is wrong: expected `object`, got `int`."),
        ("[record\n", "efprof.toml is not valid TOML"),
        ("configuration = 'missing.toml'\n", "missing.toml, which is not a file."),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence_with_the_file(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(EfprofError) as error:
        read_settings(write(tmp_path, text))
    assert said in str(error.value)
    assert str(tmp_path / "efprof.toml") in str(error.value)


def test_configuration_files_are_named_from_where_the_settings_lie(tmp_path: Path) -> None:
    write(tmp_path / "config", "", "train.yaml")
    write(tmp_path, 'configuration = "config/train.yaml"\n')
    (tmp_path / "source").mkdir()
    assert read_settings(tmp_path / "source").configuration == (tmp_path / "config" / "train.yaml",)


def test_flags_win_over_the_file_and_windows_named_by_one_over_all_it_says_of_them() -> None:
    settings = RecordSettings(name="file", holders=True, triggers=["slow-step", "signal"])
    wanted = merge(settings, {"name": "flag", "holders": False, "triggers": None, "windows": None})
    assert wanted == {"name": "flag", "holders": False, "triggers": "slow-step,signal"}
    wanted = merge(RecordSettings(windows="none"), {"trace_steps": "5:7"})
    assert wanted == {"windows": "default", "trace_steps": "5:7", "memory_steps": "none", "triggers": "none"}
    assert merge(RecordSettings(trace_steps="5:7", triggers="none"), {"windows": "default"}) == {"windows": "default"}
