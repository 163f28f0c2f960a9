"""Edits in a file as it lies on the disk: all of them or none, byte for byte, and as a diff that git applies."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from efprof.model import HIDDEN, CodeEdit, EfprofError, lines_of

LINES = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
END = re.compile(rb"(?:\r\n|\r|\n)\Z")
NO_END = b"\n\\ No newline at end of file\n"


def edited(content: bytes, edits: Sequence[CodeEdit]) -> bytes:
    """The file with every edit made, its line ends and all other bytes kept.

    Raises EfprofError where a line is not that which an edit was made for.
    """
    lines = LINES.findall(content)
    for edit in sorted(edits, key=lambda one: -one.line):
        old = lines_of(edit.old)
        there = lines[edit.line - 1 : edit.line - 1 + len(old)]
        if "\ufffd" in edit.old:
            raise EfprofError(f"{edit.file}:{edit.line} has letters that are not UTF-8: make the edit by hand.")
        if HIDDEN in edit.old:
            raise EfprofError(f"{edit.file}:{edit.line} holds a secret that was not recorded: make the edit by hand.")
        if [END.sub(b"", line) for line in there] != [line.encode() for line in old]:
            raise EfprofError(
                f"{edit.file}:{edit.line} is no longer '{edit.old.strip()}': it has changed since; record again."
            )
        found = END.search(there[0])
        end = found[0] if found else b"\n"
        new = [line.encode() + end for line in lines_of(edit.new)]
        if new and not END.search(there[-1]):
            new[-1] = new[-1].removesuffix(end)
        lines[edit.line - 1 : edit.line - 1 + len(old)] = new
    return b"".join(lines)


def write_edits(edits: Sequence[CodeEdit], folder: Path, ref: str) -> None:
    """All of them below the folder, which has the files of `ref`, or none; raises EfprofError where one cannot be."""
    texts = {}
    for name in dict.fromkeys(edit.file for edit in edits):
        path = folder / name
        if Path(name).is_absolute():
            raise EfprofError(f"{name} lies outside the repository: make the edit by hand, and prove it with --head.")
        if not path.is_file() or not path.resolve().is_relative_to(folder):  # a link leads to the user's own
            raise EfprofError(f"{name} is no file of '{ref}': give --base, a commit that has it.")
        texts[path] = edited(path.read_bytes(), [edit for edit in edits if edit.file == name])
    for path, content in texts.items():
        path.write_bytes(content)


def patch(name: str, before: bytes, after: bytes) -> bytes:
    """The change of a file as `git apply` takes it, and takes back with `-R`; empty where there is none."""
    old, new = (re.findall(rb"[^\n]*\n|[^\n]+\Z", content) for content in (before, after))
    found = difflib.diff_bytes(difflib.unified_diff, old, new, f"a/{name}".encode(), f"b/{name}".encode())
    return b"".join(line if line.endswith(b"\n") else line + NO_END for line in found)
