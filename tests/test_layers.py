"""The layer table of docs/architecture.md: who may import whom, lazily or not."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

EVERYTHING = frozenset({
    "model", "units", "artifacts", "recorder", "facts", "audits", "fixes", "runner", "report", "compare", "fit",
    "hunt", "commands", "cli", "processes",
})  # fmt: skip
ALLOWED: dict[str, frozenset[str]] = {
    "": frozenset({"recorder"}),
    "__main__": frozenset({"cli"}),
    "cli": frozenset({"commands", "model"}),
    "commands": EVERYTHING - {"cli"},
    "compare": frozenset({"model", "processes", "units"}),
    "report": frozenset({"model", "units"}),
    "fit": frozenset({"facts", "artifacts", "model", "processes", "units"}),
    "hunt": frozenset({"facts", "artifacts", "model", "processes"}),
    "runner": frozenset({"model"}),
    "audits": frozenset({"facts", "fixes", "model", "units"}),
    "facts": frozenset({"artifacts", "model", "units"}),
    "artifacts": frozenset({"model", "units"}),
    "fixes": frozenset({"model", "units"}),
    "recorder": frozenset({"artifacts", "model", "processes", "units"}),
    "model": frozenset(),
    "processes": frozenset(),
    "units": frozenset(),
}
FACTS: tuple[frozenset[str], ...] = (
    frozenset({"allocator", "run"}),
    frozenset({"source"}),
    frozenset({"steps"}),
    frozenset({"input", "numbers", "peak", "time"}),
    frozenset({"gain", "growth"}),
    frozenset({"device"}),
    frozenset({"gpu_estimate"}),
    frozenset({"overview"}),
)
"""The folders of facts: each may import those before its own row, and none beside it."""
USE_THE_ALLOCATOR = frozenset({"device", "gpu_estimate"})
MAX_ENTRIES = 24
MAY_HAVE_MORE = frozenset({"efprof/audits", "tests/audits", "tests/casebook"})
"""One file is one audit, or one case."""
MAX_AUDIT_LINES = 120
"""What is longer is a fact."""
ONLY_IN_RECORD = frozenset({"torch", "memray", "psutil", "pynvml"})


@cache
def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def layer_of(path: Path) -> str:
    """The first name below the package: a folder, or a file at its top; the package's `__init__` has none."""
    first = path.relative_to(ROOT).parts[1].removesuffix(".py")
    return "" if first == "__init__" else first


@cache
def imports(path: Path) -> list[str]:
    """Every module that is imported anywhere in the file, by its full name."""
    package = path.relative_to(ROOT).with_suffix("").parts
    found: list[str] = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = list(package[: len(package) - node.level]) if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            found += [f"{module}.{alias.name}" for alias in node.names]
    return found


def named_in_text(path: Path, package: str) -> bool:
    """Whether the file hands a module's name to the import system as a string."""
    return any(
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and (node.value == package or node.value.startswith(f"{package}."))
        and " " not in node.value
        for node in nodes_of(path)
    )


def test_every_layer_is_in_the_table_and_imports_only_what_that_allows() -> None:
    assert {layer_of(path) for path in sources("efprof")} <= set(ALLOWED)
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources("efprof")
        for name in imports(path)
        if name.startswith("efprof.") and not _is_allowed(name.split(".")[1], layer_of(path))
    ]
    assert wrong == []


def _is_allowed(target: str, layer: str) -> bool:
    return target == layer or target in ALLOWED[layer] or target not in EVERYTHING


def test_a_folder_of_facts_imports_only_those_below_it() -> None:
    level = {folder: number for number, folders in enumerate(FACTS) for folder in folders}
    wrong = []
    for path in sources("efprof/facts"):
        folder = path.relative_to(ROOT / "efprof/facts").parts[0]
        for name in imports(path):
            target = name.removeprefix("efprof.facts.").split(".")[0]
            if not name.startswith("efprof.facts.") or target == folder:
                continue
            is_below = level[target] < level[folder]
            if not is_below or (target == "allocator" and folder not in USE_THE_ALLOCATOR):
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert wrong == []
    assert set(level) == {path.parent.name for path in (ROOT / "efprof/facts").glob("*/__init__.py")}


def test_no_class_of_the_recorder_is_given_the_session() -> None:
    classes = [
        (path, node)
        for path in sources("efprof/recorder")
        if "efprof.recorder.session.session.Session" in imports(path)
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef)
    ]
    assert classes, "it is spelled in another way"
    named = [
        f"{path.relative_to(ROOT)}: {one.name}"
        for path, one in classes
        if any(isinstance(node, ast.Name) and node.id in ("Session", "session") for node in ast.walk(one))
    ]
    assert named == []


@pytest.mark.parametrize("package", ["efprof", "energy_flow"])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sources(package)}
    imported = {
        module: {found for name in imports(path) for found in (name, name.rpartition(".")[0]) if found in files}
        for module, path in files.items()
    }
    TopologicalSorter({module: names - {module} for module, names in imported.items()}).prepare()  # or CycleError


@pytest.mark.parametrize("package", ["efprof", "energy_flow", "tests", "benchmarks"])
def test_every_folder_can_be_taken_in_at_a_glance_and_one_of_a_package_says_what_is_in_it(package: str) -> None:
    folders = {path.parent for path in sources(package)}
    entries = {
        str(folder.relative_to(ROOT)): [
            one for one in folder.iterdir() if one.name not in ("__init__.py", "__pycache__")
        ]
        for folder in folders
    }
    too_many = {folder: len(found) for folder, found in entries.items() if len(found) > MAX_ENTRIES}
    assert set(too_many) <= MAY_HAVE_MORE, too_many
    if package in ("efprof", "energy_flow"):
        inits = [path for path in sources(package) if path.name == "__init__.py"]
        assert [str(path) for path in inits if not ast.get_docstring(ast.parse(path.read_text()))] == []


def test_an_audit_is_short() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in sources("efprof/audits")}
    assert {name: length for name, length in lengths.items() if length > MAX_AUDIT_LINES} == {}


def test_only_the_recorder_imports_torch_and_nothing_energy_flow() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources("efprof")
        for name in imports(path)
        if name.split(".")[0] in ({"energy_flow"} if layer_of(path) == "recorder" else ONLY_IN_RECORD | {"energy_flow"})
    ]
    assert wrong == []
    assert [str(path) for path in sources("efprof") if named_in_text(path, "energy_flow")] == []


def test_energy_flow_knows_of_efprof_only_in_one_audit_that_imports_the_model() -> None:
    found = {
        path: {name for name in imports(path) if name.split(".")[0] == "efprof"} for path in sources("energy_flow")
    }
    users = {path: names for path, names in found.items() if names}
    assert len(users) <= 1, "one audit at most"
    assert all(name.startswith("efprof.model") for names in users.values() for name in names)


def test_exceptions_are_caught_wholesale_in_two_places_only() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in sources("efprof")
        for node in nodes_of(path)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
        and not any(isinstance(statement, ast.Raise) and statement.exc is None for statement in node.body)
    ]
    assert set(found) == {"efprof/recorder/session/shell.py", "efprof/runner.py"}
