"""The user's own configuration file, as keys and texts."""

import sys
from pathlib import Path

import pytest

from efprof.artifacts.settings import MAX_BYTES, read_configuration
from efprof.model import EfprofError


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
     ("train.json", "[1]"), ("train.yaml", "a: &a [*a]\nb: [*a, {c: *a}, *a"), ("deep.json", "[" * 5000)],
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


def test_yaml_without_its_library_is_kept_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert read(tmp_path, "a.yaml", "b: 1\n") == {"a.yaml": "b: 1\n"}
