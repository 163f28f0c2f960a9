"""The documentation: it builds without a warning, its links and commands exist, its tables hold what is there."""

import importlib
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

from efprof import audits
from efprof.cli import group
from efprof.commands.report import analyse
from efprof.compare.comparison import compare_reports
from efprof.recorder.doctor.checks import find_traps
from efprof.report.comparison_form import render_comparison_text
from efprof.report.text_forms import render_text
from efprof.runner import find_audits
from tests.support.waiting import MAX_WAIT_S
from tests.test_layers import ALLOWED, FACTS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GENERATED = {"contributing.md", "changelog.md"}
"""Copies that the build makes of the files of that name."""
PAGES = {
    str(path.relative_to(ROOT)): path
    for folder in (ROOT, DOCS, ROOT / "reports")
    for path in sorted(folder.glob("*.md"))
    if not (folder == DOCS and path.name in GENERATED)
}
RUNS = ROOT / "tests/runs"
OF_A_SNAPSHOT = "Device 1 could not give"
"""This quotation is of a file that the repository does not hold."""
AUDITS = {module.name for module in pkgutil.iter_modules(audits.__path__)}
MAX_README_LINES, MAX_README_WORDS = 180, 1_800
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
CODE = re.compile(r"^    .*$|`[^`\n]+`", re.MULTILINE)
COMMAND = re.compile(r"\befprof ((?:[a-z][\w-]*)(?: [a-z][\w-]*)?)([^`#\n]*)")
needs_sphinx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("sphinx", "myst_parser", "furo")),
    reason="needs sphinx, myst-parser and furo: 'make install' installs them",
)


def slugs(path: Path) -> set[str]:
    """The anchors of its headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_to_a_file_and_a_heading_that_exist(name: str) -> None:
    page, broken = PAGES[name], []
    for file, anchor in LINK.findall(page.read_text()):
        target = page.parent / file if file else page
        if not target.exists() or (anchor and anchor not in slugs(target)):
            broken.append(f"{file}#{anchor}")
    assert broken == []


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_file_that_is_named_exists(name: str) -> None:
    files = [
        "/" + str(path.relative_to(ROOT))
        for top in ("efprof", "tests", "benchmarks")
        for path in (ROOT / top).rglob("*.*")
    ]
    named = re.findall(r"`((?:[\w-]+/)*\w+\.(?:py|html))`", PAGES[name].read_text())
    assert named
    assert [one for one in named if not any(file.endswith(f"/{one}") for file in files)] == []


def shown_commands(text: str) -> Iterator[tuple[str, str]]:
    """Of each `efprof ...` in code: the words that may be its subcommand, and the rest of efprof's own words."""
    for shown in CODE.findall(text):
        for words, rest in COMMAND.findall(shown):
            yield words, rest.split(" -- ")[0]


@pytest.mark.parametrize("name", [name for name in PAGES if not name.startswith("reports/")])
def test_every_command_that_is_shown_exists_with_its_options(name: str) -> None:
    wrong = [
        f"efprof {words}{rest}"
        for words, rest in shown_commands(PAGES[name].read_text())
        if not set(re.findall(r"(?<=\s)--[a-z][\w-]*", rest)) <= options_of(words)
    ]
    assert wrong == []


def options_of(words: str) -> set[str]:
    """Those of the command that the words begin with; none, and not even help, where there is no such command."""
    command: click.Command | None = group
    context = click.Context(group)
    for word in words.split():
        if isinstance(command, click.Group):
            command = command.get_command(context, word)
    if command is None or command is group:
        pytest.fail(f"there is no command 'efprof {words}'")
    return {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}


def test_the_readme_is_short_enough_to_be_read() -> None:
    text = PAGES["README.md"].read_text()
    assert len(text.splitlines()) <= MAX_README_LINES
    assert len(text.split()) <= MAX_README_WORDS


@pytest.mark.parametrize("name", ["README.md", "docs/audits.md"])
def test_its_table_names_every_audit_and_no_other(name: str) -> None:
    table = PAGES[name].read_text().split("| audit | the fault |")[1].split("\n\n")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(named) == sorted(AUDITS)


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the table below that heading of the page on architecture."""
    section = PAGES["docs/architecture.md"].read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_layer_table_and_the_order_of_the_facts_are_those_that_the_tests_hold() -> None:
    everything_below = ALLOWED["commands"]
    told = {
        re.sub(r"`efprof/|\.py`|/`", "", layer): set(re.findall(r"`(\w+)`", may))
        or (everything_below if may == "everything below" else set())
        for layer, _, may in rows_of("The layers")
    }
    assert told == {layer: set(may) for layer, may in ALLOWED.items() if layer not in ("", "__main__")}
    rows = [set(re.findall(r"`(\w+)`", folders)) for _, folders, _ in rows_of("The order of the folders of facts")]
    assert rows == [set(folders) for folders in FACTS]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does, elsewhere."""
    place = tmp_path_factory.mktemp("site")
    flags = ["-W", "--keep-going", "--quiet", "-d", str(place / "trees")]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *flags, str(DOCS), str(place / "html")],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=MAX_WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    return place / "html"


@pytest.mark.long  # `.ci/run` builds it, after `make test`
@needs_sphinx
@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_its_pages_lead_to_the_measurements_and_a_page_for_each_audit(
    site: Path,
) -> None:
    assert {page.stem for page in (site / "audits").glob("*.html")} == AUDITS
    page = (site / "audits/retained_graph.html").read_text()
    assert "Predicted gain" in page
    assert "self.kept_states.append(states.detach())" in re.sub(r"<[^>]+>", "", page), "its finding in a recorded run"
    assert ("retained_graph-light.svg" in page) == (importlib.util.find_spec("matplotlib") is not None)
    assert 'href="measured/casebook.html"' in (site / "audits.html").read_text()
    assert 'href="../audits.html"' in (site / "measured/casebook.html").read_text()
    assert 'href="sick.html"' in (site / "index.html").read_text()
    assert (site / "sick.html").exists()
    assert 'href="audits/input_stall.html"' in (site / "tour.html").read_text()


@pytest.fixture
def audit_pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that writes the pages of the audits."""
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("audit_pages")


def test_without_matplotlib_the_pages_come_without_pictures_and_an_audit_without_a_recorded_run_says_so(
    audit_pages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = {name: audit for name, audit in find_audits().items() if name in ("retained_graph", "unused_headroom")}
    monkeypatch.setattr(audit_pages, "find_audits", lambda: both)
    monkeypatch.setattr(audit_pages, "pyplot", None)
    (tmp_path / "gone_audit.md").write_text("an audit that is no more")
    audit_pages.write_pages(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {*both}
    assert "{image}" not in (tmp_path / "retained_graph.md").read_text()
    text = (tmp_path / "unused_headroom.md").read_text()
    assert "was never recorded on a real device" in text
    assert "The repository holds no recorded run of it." in text


def quotes_of(text: str) -> list[str]:
    """Its block quotes, each on one line."""
    return [" ".join(block.replace("\n> ", " ")[2:].split()) for block in text.split("\n\n") if block.startswith("> ")]


def test_what_the_tour_quotes_is_what_the_commands_say() -> None:
    sick = {name: analyse(RUNS / f"{name}-sick") for name in ("retained_graph", "nonfinite_loss", "input_stall")}
    both = compare_reports([analyse(RUNS / "retained_graph-healthy")], [sick["retained_graph"]], forced=True)
    plain, cuda, share = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "garbage_collection_threshold:0.8"
    environments = ({plain: "a:1"}, {plain: "a:1", cuda: "b:1"}, {cuda: share})
    traps = [" ".join(trap) for one in environments for trap in find_traps(one, (2, 9))]
    said = "\n".join([*map(render_text, sick.values()), render_comparison_text(both), *traps])
    quoted = [one for one in quotes_of(PAGES["docs/tour.md"].read_text()) if not one.startswith(OF_A_SNAPSHOT)]
    assert len(quoted) == 7
    assert [one for one in quoted if one not in said] == []
