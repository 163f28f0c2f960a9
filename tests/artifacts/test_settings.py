"""efprof.toml and [tool.efprof]: found, checked, and beaten by flags; and the user's own configuration file."""

from pathlib import Path

import pytest

from efprof.artifacts.settings import MAX_BYTES, RecordSettings, Settings, merge, read_configuration, read_settings
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
        ("[record]\nholder = true\n", "there is no setting 'record.holder'; did you mean 'holders'?"),
        ("[record]\nbogus = 1\n", "there is no setting 'record.bogus'; there are "),
        ("[gate]\nbudgets = 1\n", "there is no setting 'gate.budgets'; did you mean 'budget'?"),
        ("[gate]\nbudget = {step_ms = -1}\n", "'gate.budget[...]' is wrong: expected `float` >= 0.0."),
        ("[recrod]\n", "there is no setting 'recrod'; did you mean 'record'?"),
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


def read(folder: Path, name: str, text: str) -> dict[str, str]:
    (folder / name).write_text(text)
    return read_configuration([folder / name])


FORMS = {
    "train.toml": 'lr = 1e-3\n[data]\nnum_workers = 4\npath = "a b"\nsizes = [1, 2]\nshuffle = true\n',
    "train.json": '{"lr": 1e-3, "data": {"num_workers": 4, "path": "a b", "sizes": [1, 2], "shuffle": true}}',
    "train.yaml": "lr: 0.001\ndata:\n  num_workers: 4\n  path: a b\n  sizes: [1, 2]\n  shuffle: yes\n",
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_read_into_the_same_keys_and_texts(name: str, tmp_path: Path) -> None:
    if name.endswith("yaml"):
        pytest.importorskip("yaml", reason="needs yaml")
    assert read(tmp_path, name, FORMS[name]) == {
        "lr": "0.001", "data.num_workers": "4", "data.path": "a b", "data.sizes": "[1, 2]", "data.shuffle": "true",
    }  # fmt: skip


def test_a_list_of_tables_and_keys_of_several_files_are_named_by_place(tmp_path: Path) -> None:
    text = "[[layers]]\nsize = 8\n[[layers]]\nsize = 16\n"
    assert read(tmp_path, "a.toml", text) == {"layers.0.size": "8", "layers.1.size": "16"}
    (tmp_path / "model.toml").write_text("size = 8\n")
    (tmp_path / "data.json").write_text('{"size": 9}')
    values = read_configuration([tmp_path / "model.toml", tmp_path / "data.json"])
    assert values == {"model.toml:size": "8", "data.json:size": "9"}


@pytest.mark.parametrize(
    ("name", "text"),
    [("train.ini", "[a]\nb = 1\n"), ("train.toml", "a ="), ("train.yaml", "a: !!python/object:os.system {}"),
     ("train.json", "[1]"), ("deep.json", "[" * 5000)],
)  # fmt: skip
def test_what_is_of_no_known_form_is_kept_as_text(name: str, text: str, tmp_path: Path) -> None:
    assert read(tmp_path, name, text) == {name: text}


def test_yaml_that_holds_itself_or_grows_without_end_does_no_harm(tmp_path: Path) -> None:
    assert len(read(tmp_path, "self.yaml", "a: &a {b: *a}\n")) == 1
    doubling = "a0: &a0 {x: 1, y: 2}\n" + "".join(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}\n" for n in range(1, 19))
    assert list(read(tmp_path, "laughs.yaml", doubling)) == ["laughs.yaml"]


def test_too_large_a_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(EfprofError, match=r"more than 256 KiB \(.*big.toml\)"):
        read(tmp_path, "big.toml", "#" * (MAX_BYTES + 1))
