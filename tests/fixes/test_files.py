"""Edits of files as they lie on the disk: only the lines that one names change, and git takes the diff both ways."""

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efprof.fixes.files import edited, patch
from efprof.model import CodeEdit, EfprofError, lines_of
from tests.compare.sides.test_trees import git

ENDS = ["\n", "\r\n", "\r"]


def edit(line: int, old: str, new: str) -> CodeEdit:
    return CodeEdit(file="train.py", line=line, old=old, new=new)


@pytest.mark.parametrize("end", ENDS)
def test_line_ends_are_kept_and_lines_count_as_python_counts_them(end: str) -> None:
    content = end.join(["a = 1", "# \x0c a form feed and \u2028 end no line", "loss.item()", "b = 2"]).encode()
    found = edited(content, [edit(4, "b = 2", "b = 3"), edit(3, "loss.item()", "x = loss\ny = x")])
    assert found == content.replace(b"loss.item()", f"x = loss{end}y = x".encode()).replace(b"b = 2", b"b = 3")


def test_a_line_is_deleted_where_nothing_takes_its_place() -> None:
    assert edited(b"a\n  gone()\nb\n", [edit(2, "  gone()", "")]) == b"a\nb\n"


def test_a_line_that_has_changed_since_is_named_and_nothing_is_done() -> None:
    with pytest.raises(EfprofError, match=r"train.py:2 is no longer 'loss.item\(\)': it has changed"):
        edited(b"a = 1\nloss.cpu()\n", [edit(1, "a = 1", "a = 2"), edit(2, "loss.item()", "loss")])
    with pytest.raises(EfprofError, match="no longer"):
        edited(b"a = 1\n", [edit(2, "loss.item()", "loss")])


def test_letters_of_another_encoding_are_left_alone_and_not_edited() -> None:
    content = "# été\nloss.item()  # été\n".encode("latin-1")
    assert edited(b"# \xe9\nloss.item()\n", [edit(2, "loss.item()", "loss")]) == b"# \xe9\nloss\n"
    line = content.decode(errors="replace").splitlines()[1]
    with pytest.raises(EfprofError, match="not UTF-8"):
        edited(content, [edit(2, line, "loss")])


lines = st.lists(st.text(alphabet="ab \x0c\u2028é", max_size=4), min_size=1, max_size=12)


@settings(max_examples=12)
@given(texts=lines, data=st.data(), end=st.sampled_from(ENDS[:2]), is_ended=st.booleans())
def test_git_applies_the_diff_and_takes_it_back(
    texts: list[str], data: st.DataObject, end: str, is_ended: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    texts = [text or "x" for text in texts]
    before = (end.join(texts) + end * is_ended).encode()
    assert lines_of(before.decode()) == texts
    line = data.draw(st.integers(1, len(texts)))
    after = edited(before, [edit(line, texts[line - 1], data.draw(st.sampled_from(["new", "new\nlines"])))])
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "-q")
    file = folder / "train.py"
    file.write_bytes(before)
    for option, wanted in ((), after), (("-R",), before):
        subprocess.run(["git", "apply", *option], cwd=folder, input=patch("train.py", before, after), check=True)
        assert file.read_bytes() == wanted


def test_a_file_as_it_is_has_no_diff() -> None:
    assert patch("train.py", b"a\n", b"a\n") == b""
