"""The wheel: it holds what efprof needs and no more, and works where only it and its dependencies are installed."""

import email
import os
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from pathlib import Path

import pytest

import efprof
from tests.support.waiting import MAX_WAIT_S

ROOT = Path(__file__).parents[1]
RUN = ROOT / "tests/runs/retained_graph-sick"
PACKAGES = ("efprof", "energy_flow")
BESIDE = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "demo.py",
    "tests/__init__.py",
    "benchmarks/__init__.py",
    "docs/conf.py",
)
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")

pytestmark = pytest.mark.slow


def run(*command: str, folder: Path, **environment: str) -> str:
    """What it prints; fails with what it says where it fails."""
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=MAX_WAIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the tree, in which nothing of an earlier build lies; without a network."""
    tree = tmp_path_factory.mktemp("tree")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BESIDE:
        (tree / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    place = tree / "wheels"
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(place), ".", folder=tree)
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def metadata(wheel: Path, names: set[str]) -> Message:
    (name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as archive:
        return email.message_from_bytes(archive.read(name))


def test_it_holds_every_file_of_both_packages_and_nothing_beside_them_but_its_metadata(names: set[str]) -> None:
    files = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files - names == set()
    assert {
        "efprof/py.typed",
        "efprof/report/page/plotly/LICENSE",
        "efprof/report/page/plotly/plotly-cartesian.min.js.gz",
        "efprof/report/page/templates/report.html",
        "efprof/recorder/launch/startup/sitecustomize.py",
        "energy_flow/py.typed",
    } <= names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_its_metadata_is_complete(metadata: Message, names: set[str]) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("efprof", efprof.__version__)
    assert metadata["License-Expression"] == "Apache-2.0 AND MIT"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Summary"].startswith("Finds why PyTorch training")
    assert metadata["Author"] == "efprof maintainers"
    assert metadata["Keywords"]
    assert metadata.get_all("Classifier")
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).startswith("# efprof\n")
    assert set(metadata.get_all("License-File", [])) == {"LICENSE", "efprof/report/page/plotly/LICENSE"}
    assert sum(".dist-info/licenses/" in name for name in names) == 2


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel alone; what it depends on is taken from the environment of the tests."""
    place = tmp_path_factory.mktemp("installed")
    run(*PIP, "install", "--no-deps", "--no-index", "--target", str(place), str(wheel), folder=place)
    return place


def efprof_command(installed: Path, folder: Path, *arguments: str) -> str:
    """As its own script, elsewhere, with the installed files first."""
    return run(str(installed / "bin/efprof"), *arguments, folder=folder, PYTHONPATH=str(installed))


def test_the_installed_files_are_those_that_run_and_say_their_version_and_commands(
    installed: Path, tmp_path: Path
) -> None:
    program = "import efprof, energy_flow; print(efprof.__file__); print(energy_flow.__file__)"
    said = run(sys.executable, "-c", program, folder=tmp_path, PYTHONPATH=str(installed))
    assert said.split() == [str(installed / package / "__init__.py") for package in PACKAGES]
    assert efprof_command(installed, tmp_path, "--version") == f"efprof, version {efprof.__version__}\n"
    commands = efprof_command(installed, tmp_path, "--help").split("Commands:\n")[1]
    found = [line.split()[0] for line in commands.splitlines()]
    assert found == sorted(path.stem for path in (ROOT / "efprof/commands").glob("[!_]*.py"))


def test_a_report_of_a_recorded_run_is_a_whole_page(installed: Path, tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    said = efprof_command(installed, tmp_path, "report", "run", "--out", "page.html")
    assert "`kept_states` keeps tensors with their graphs" in said
    page = (tmp_path / "page.html").read_text()
    assert "self.kept_states.append(states.detach())" in page
    assert len(page) > 500_000, "plotly's bundle is not in the page"
