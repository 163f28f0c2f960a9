"""Which files are the user's, and what they are called in reports."""

import errno
import linecache
import os
import sys
import sysconfig
from dataclasses import make_dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
import torch

from efprof.artifacts.run_file import read_sources
from efprof.recorder.session import sites as sites_module
from efprof.recorder.session.sites import Sites, user_file_of
from efprof.recorder.session.writing import LineWriter, RankFolder


def make_sites(root: Path) -> Sites:
    return Sites(root, LineWriter(RankFolder(root), "sources.jsonl").write)


def test_libraries_python_and_efprof_are_not_the_users(tmp_path: Path) -> None:
    sites = make_sites(tmp_path)
    assert not sites.is_user_file(torch.__file__)
    assert not sites.is_user_file(os.__file__)
    assert not sites.is_user_file(sites_module.__file__)
    assert not sites.is_user_file("<frozen importlib>")
    assert sites.is_user_file(str(tmp_path / "train.py"))


def test_what_lies_among_the_packages_of_another_environment_is_not_the_users(tmp_path: Path) -> None:
    packages = tmp_path / "shared" / "site-packages"
    sites = make_sites(tmp_path)
    assert not sites.is_user_file(str(packages / "some" / "library.py"))
    assert sites.is_user_file(str(tmp_path / "shared" / "train.py"))


def test_the_script_that_runs_is_the_users_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "site-packages" / "train.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--lr", "1"])
    assert make_sites(tmp_path).is_user_file(str(script))


def test_names_are_relative_to_the_repository_however_the_file_was_reached(tmp_path: Path) -> None:
    root, link = tmp_path / "project", tmp_path / "link"
    (root / "package").mkdir(parents=True)
    (root / "package" / "model.py").write_text("")
    link.symlink_to(root)
    sites = make_sites(link)
    spellings = [
        root / "package" / "model.py",
        link / "package" / "model.py",
        link / "other" / ".." / "package/model.py",
    ]
    assert {sites.file(str(spelling)) for spelling in spellings} == {"package/model.py"}


def test_a_file_outside_the_repository_keeps_its_path(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    other = str(tmp_path / "elsewhere.py")
    assert make_sites(tmp_path / "project").file(other) == other


def test_the_text_of_a_users_file_is_kept_once(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("first = 1\n")
    sites = make_sites(tmp_path)
    for _ in range(2):
        sites.file(str(source))
    sites.file(torch.__file__)
    source.write_text("changed\n")
    assert read_sources(tmp_path / "rank0") == {"train.py": ["first = 1"]}


UNREADABLE = [PermissionError(errno.EACCES, "denied"), OSError(errno.ESTALE, "stale"), OSError(errno.EIO, "broken")]


@pytest.mark.parametrize("error", UNREADABLE, ids=str)
@pytest.mark.parametrize("asked", ["stat", "read_text"])
def test_a_file_that_cannot_be_read_is_named_without_its_text(
    asked: str, error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    (tmp_path / "train.py").write_text("first = 1\n")
    (tmp_path / "model.py").write_text("second = 2\n")
    sites = make_sites(tmp_path)
    monkeypatch.setattr(Path, asked, refuse)
    assert sites.file(str(tmp_path / "train.py")) == "train.py"
    monkeypatch.undo()
    assert sites.file(str(tmp_path / "model.py")) == "model.py"
    assert read_sources(tmp_path / "rank0") == {"model.py": ["second = 2"]}


def install(name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package as if it were installed beside torch, and imported."""
    folder = Path(sysconfig.get_paths()["purelib"]) / name
    module = ModuleType(name)
    module.__file__, module.__path__ = str(folder / "__init__.py"), [str(folder)]
    monkeypatch.setitem(sys.modules, name, module)
    return folder


def test_an_installed_package_that_runs_as_a_module_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install("installed_trainer", monkeypatch)
    assert not make_sites(tmp_path).is_user_file(str(folder / "model.py"))
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("installed_trainer.train", None))
    sites = make_sites(tmp_path)
    assert sites.is_user_file(str(folder / "model.py"))
    assert not sites.is_user_file(torch.__file__)


def test_so_it_is_where_the_package_itself_imports_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = install("installed_trainer", monkeypatch)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys, "argv", ["-m", "--epochs", "3"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "dev", "-m", "installed_trainer.train", "--epochs", "3"])
    assert make_sites(tmp_path).is_user_file(str(folder / "model.py"))


def test_an_installed_package_whose_console_script_runs_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/pytest"])
    sites = make_sites(tmp_path)
    import _pytest

    assert sites.is_user_file(str(_pytest.__file__)), "where pytest's console script has its function"
    assert not sites.is_user_file(pytest.__file__)


def test_a_dataclass_of_a_script_is_still_the_users_once_the_script_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its methods are generated, and Python has deleted `__file__` by then."""
    main, script = ModuleType("__main__"), str(tmp_path / "train.py")
    main.__loader__ = SourceFileLoader("__main__", script)
    monkeypatch.setitem(sys.modules, "__main__", main)
    kind = make_dataclass("Memory", ["value"])
    kind.__module__ = "__main__"  # since Python 3.12 it is that of the caller
    assert user_file_of(kind, make_sites(tmp_path)) == script


def test_what_torch_generated_to_compile_it_is_not_the_users(tmp_path: Path) -> None:
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    assert not make_sites(tmp_path).is_user_file(f"{default_cache_dir()}/ab/cabcd.py")


@pytest.mark.parametrize("cell", ["<ipython-input-3-0a1b2c>", "/tmp/ipykernel_41/123456.py"])
def test_a_cell_of_a_notebook_is_the_users_and_its_text_is_what_tracebacks_show(
    cell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = cell.replace("3", "4")
    for name, text in ((cell, "first = 1\n"), (other, "second = 2\n"), ("<attrs generated init>", "pass\n")):
        monkeypatch.setitem(linecache.cache, name, (len(text), None, [text], name))
    sites = make_sites(tmp_path)
    assert sites.is_user_file(cell)
    assert sites.file(cell) == cell
    assert read_sources(tmp_path / "rank0") == {cell: ["first = 1"]}
    sites.keep_all()
    kept = read_sources(tmp_path / "rank0")
    assert kept[other] == ["second = 2"], "of the other cells, too, once something grows"
    assert "<attrs generated init>" not in kept


def test_what_is_piped_into_python_is_the_users_without_a_text(tmp_path: Path) -> None:
    sites = make_sites(tmp_path)
    assert sites.is_user_file("<stdin>")
    assert sites.file("<stdin>") == "<stdin>"
    assert read_sources(tmp_path / "rank0") == {}
