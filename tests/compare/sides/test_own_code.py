"""Each side runs its own code, however the command starts it and the project is installed; else that is noted."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

import efprof.recorder.launch.launch as launching

MODULE = "import sys\nVALUE = {value}\ndef main():\n    print(VALUE)\n"
FINDER = """\
import importlib.util, sys
MAPPING = {mapping}
NAMESPACES = {{}}
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in MAPPING:
            place = MAPPING[name] + "/__init__.py"
            return importlib.util.spec_from_file_location(name, place, submodule_search_locations=[MAPPING[name]])
def install():
    sys.meta_path.append(Finder)
"""
SPAWNS = """\
import multiprocessing, package
def child():
    import package.inner
    print(package.inner.VALUE, flush=True)
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
"""
RUNS = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import package; package.main()'], check=True)\n"


class Project:
    """The user's tree, where all is 1, one where all is 2, and an environment that has the user's installed."""

    def __init__(self, folder: Path, *, layout: str, installed: str) -> None:
        self.root, self.place = folder / "project", folder / "work"
        self.tree = self.place / "head" / "project"
        self.startup = launching.STARTUP_FOLDER
        self.notes, self.environment = folder / "notes", self.root / ".venv"
        self.notes.mkdir()
        for value, tree in enumerate((self.root, self.tree), start=1):
            package = tree / layout / "package"
            package.mkdir(parents=True)
            for name in ("__init__", "__main__", "inner"):
                (package / f"{name}.py").write_text(MODULE.format(value=value))
            (package / "__main__.py").write_text("import package\npackage.main()\n")
            (tree / "train.py").write_text("import package\npackage.main()\n")
            (tree / "spawns.py").write_text(SPAWNS)
            (tree / "runs.py").write_text(RUNS)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.environment)], check=True)
        (site,) = self.environment.glob("lib/*/site-packages")
        source = self.root / layout
        if installed == "by path":
            (site / "project.pth").write_text(f"{source}\n")
        elif installed == "by finder":
            (site / "__editable___project_finder.py").write_text(
                FINDER.format(mapping={"package": str(source / "package")})
            )
            (site / "project.pth").write_text("import __editable___project_finder as one; one.install()\n")
        script = self.environment / "bin" / "train-it"
        script.write_text(f"#!{self.environment}/bin/python\nfrom package import main\nmain()\n")
        script.chmod(0o755)

    def run(self, *words: str, **variables: str) -> str:
        """What a command prints that is started in the side's tree."""
        own = {"root": str(self.root), "tree": str(self.tree), "place": str(self.place), "notes": str(self.notes)}
        path = os.pathsep.join([str(self.startup), *filter(None, [variables.pop("PYTHONPATH", "")])])
        environment = {**os.environ, "EFPROF_TREE": json.dumps(own), "PYTHONPATH": path, **variables}
        environment.pop("EFPROF_RECORD", None)
        program = [str(self.environment / "bin" / "python"), *words] if words[0] != "train-it" else [
            str(self.environment / "bin" / "train-it")
        ]  # fmt: skip
        done = subprocess.run(program, cwd=self.tree, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @property
    def noted(self) -> list[str]:
        return [name for note in self.notes.iterdir() for name in json.loads(note.read_text())]


WAYS: dict[str, Sequence[str]] = {
    "script": ("train.py",),
    "module": ("-m", "package"),
    "console script": ("train-it",),
    "spawned": ("spawns.py",),
    "subprocess": ("runs.py",),
}


@pytest.mark.parametrize("installed", ["by path", "by finder"])
@pytest.mark.parametrize("layout", ["src", "."])
def test_a_changed_line_is_run_in_whatever_way_the_command_starts_it(
    tmp_path: Path, layout: str, installed: str
) -> None:
    project = Project(tmp_path, layout=layout, installed=installed)
    assert {way: project.run(*words) for way, words in WAYS.items()} == dict.fromkeys(WAYS, "2")
    assert project.noted == []


@pytest.mark.long
@pytest.mark.parametrize("installed", ["by path", "by finder"])
@pytest.mark.parametrize("layout", ["src", "."])
def test_a_changed_line_is_run_by_each_rank_of_torchrun(tmp_path: Path, layout: str, installed: str) -> None:
    project = Project(tmp_path, layout=layout, installed=installed)
    (site,) = project.environment.glob("lib/*/site-packages")
    (site / "torch.pth").write_text(sysconfig.get_path("purelib"))
    ranks = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert project.run(*ranks, "train.py").split() == ["2", "2"]
    assert project.noted == []


def test_a_path_to_the_users_tree_leads_to_the_sides_own(tmp_path: Path) -> None:
    project = Project(tmp_path, layout="src", installed="")
    assert project.run("train.py", PYTHONPATH=str(project.root / "src")) == "2"
    assert project.noted == []


def test_what_comes_from_the_users_tree_all_the_same_is_noted(tmp_path: Path) -> None:
    project = Project(tmp_path, layout="src", installed="")
    inserts = f"import sys\nsys.path.insert(0, {str(project.root / 'src')!r})\nimport package\npackage.main()\n"
    (project.tree / "inserts.py").write_text(inserts)
    assert project.run("inserts.py") == "1"
    assert project.noted == [str(project.root / "src" / "package" / "__init__.py")]
    shutil.rmtree(project.notes)
    project.notes.mkdir()
    assert project.run(str(project.root / "train.py"), PYTHONPATH=str(project.root / "src")) == "2"
    assert project.noted == [str(project.root / "train.py")]


def test_an_environment_within_the_tree_and_links_into_it_are_what_they_are(tmp_path: Path) -> None:
    project = Project(tmp_path, layout="src", installed="by path")
    (site,) = project.environment.glob("lib/*/site-packages")
    (site / "library.py").write_text("NAME = __file__\n")
    (project.root / "data").mkdir()
    (project.root / "data" / "linked.py").write_text("")
    (project.tree / "data").symlink_to(project.root / "data")
    text = "import sys, library\nsys.path.append('data')\nimport linked\nprint(library.NAME)\n"
    (project.tree / "uses.py").write_text(textwrap.dedent(text))
    assert project.run("uses.py") == str(site / "library.py")
    assert project.noted == []


def test_a_recorder_that_lies_in_the_users_tree_goes_on_recording(tmp_path: Path) -> None:
    project = Project(tmp_path, layout=".", installed="by finder")
    for tree in (project.root, project.tree):
        shutil.copytree(launching.STARTUP_FOLDER, tree / "efprof" / "recorder" / "launch" / "startup")
    project.startup = project.root / "efprof" / "recorder" / "launch" / "startup"
    (project.tree / "asks.py").write_text("import efprof_tree, package\nprint(efprof_tree.__file__, package.VALUE)\n")
    assert project.run("asks.py", PYTHONPATH=str(project.startup)) == f"{project.startup}/efprof_tree.py 2"
    assert project.noted == []
