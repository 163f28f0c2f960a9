"""What is started in a side's tree: the user's command, with its paths moved."""

from pathlib import Path

import pytest

from efprof.compare.sides.starting import LOG, Training, moved_words
from efprof.compare.sides.trees import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Of a repository with an environment that git ignores."""
    root, place = tmp_path / "project", tmp_path / "work"
    for folder in (root, place / "head" / "run" / "project"):
        (folder / "sub").mkdir(parents=True)
        (folder / "train.py").write_text("")
        (folder / "sub" / "small.yaml").write_text("")
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / ".venv" / "bin" / "python").write_text("")
    (root / "data").mkdir()
    return Tree(ref="main", commit="c", root=root, place=place, folder=place / "head" / "run" / "project")


@pytest.mark.parametrize(
    ("words", "moved"),
    [
        (["python", "train.py"], ["python", "train.py"]),
        (["python", "{root}/train.py", "--steps=3"], ["python", "{tree}/train.py", "--steps=3"]),
        (["python", "x.py", "--config={root}/sub/small.yaml"], ["python", "x.py", "--config={tree}/sub/small.yaml"]),
        ([".venv/bin/python", "train.py"], ["{root}/.venv/bin/python", "train.py"]),
        (["{root}/.venv/bin/python", "train.py"], ["{root}/.venv/bin/python", "train.py"]),
        (["./train.py", "x=/elsewhere"], ["./train.py", "x=/elsewhere"]),
        (["python", "train.py", "{root}/out"], ["python", "train.py", "{tree}/out"]),
    ],
    ids=["relative", "absolute", "within an option", "an environment", "its whole path", "a script", "an output"],
)  # fmt: skip
def test_paths_in_the_users_tree_lead_to_the_sides_own_and_an_environment_stays_where_it_is(
    tree: Tree, words: list[str], moved: list[str]
) -> None:
    places = {"root": tree.root, "tree": tree.folder}
    wanted, given = ([word.format(**places) for word in some] for some in (moved, words))
    assert moved_words(tree, given, tree.root) == wanted


def test_a_program_is_found_from_the_folder_that_the_user_is_in(tree: Tree) -> None:
    assert moved_words(tree, ["../.venv/bin/python", "x.py"], tree.root / "sub")[0] == f"{tree.root}/.venv/bin/python"
    assert moved_words(tree, ["../train.py"], tree.root / "sub") == ["../train.py"]


def test_the_users_tree_is_known_by_any_name_of_it(tree: Tree) -> None:
    other = tree.place.parent / "link"
    other.symlink_to(tree.root)
    assert moved_words(tree, ["python", f"{other}/train.py"], tree.root) == ["python", f"{tree.folder}/train.py"]


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/texts.txt'", "--link data"),
        ("ModuleNotFoundError: No module named 'package._core'", "--link src/package/_core.cpython-399.so"),
        ("ModuleNotFoundError: No module named 'generated'", "--link generated"),
        ("ModuleNotFoundError: No module named 'sub'", ""),
        ("ModuleNotFoundError: No module named 'torchvision'", ""),
    ],
)
def test_what_only_the_users_tree_has_is_advised_to_be_linked(tree: Tree, said: str, advice: str) -> None:
    (tree.root / "src" / "package").mkdir(parents=True)
    for name in ("data/texts.txt", "src/package/_core.cpython-399.so"):
        (tree.root / name).write_text("git ignores it")
    (tree.root / "generated").mkdir()
    (tree.place / LOG).write_text(f"{said}\n")
    heard = Training(command=("python",), here=tree.root).said(tree, tree.place)
    assert heard.startswith(f"it said '{said}'")
    assert ("your tree has it" in heard, advice in heard) == (bool(advice), True)
