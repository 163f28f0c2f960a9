"""Keeps what the working tree had that the commit has not: uncommitted.diff in the run folder, without secrets."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePath

from efprof.artifacts.run_file import DIFF_FILE, Git
from efprof.recorder.launch.machine import EMPTY_TREE, read_from_git
from efprof.recorder.session.redaction import without_secret_line, without_secrets
from efprof.units import KIB, MIB

MAX_BYTES = MIB
"""Of the whole diff: a hand-written change is some kilobytes, and generated files are none of it."""

MAX_NEW_FILE_BYTES = 64 * KIB
"""Of a file git does not know: what is longer is data, a log or a notebook full of pictures."""

MAX_NAMES = 20
"""Of files left out, as the head of the diff names them."""

PROGRAM_SUFFIXES = frozenset({".py", ".pyi", ".pyx", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".js", ".rs"})
"""Files in which a secret stands in quotes; in any other, what follows `password:` is taken for one."""

SECRET_FILE = re.compile(
    r"(?i)\.env|.*\.(pem|key|p12|pfx|keystore|jks)|id_(rsa|dsa|ecdsa|ed25519)|\.(netrc|npmrc|pypirc|htpasswd)"
    r"|.*(credential|secret|token)s?(\.(json|ya?ml|toml|ini|cfg|txt))?"
)
"""Files whose whole content is a secret, as like as not."""

DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/")
"""Whatever the user's own configuration of git makes of a diff, this is one that can be applied."""

PLAIN_NAME = re.compile(r'[^"\\\x00-\x1f\x7f]+')
"""Other names would need git's own quoting."""


def keep_diff(run_folder: Path, git: Git | None) -> None:
    """Write the changes, if there are any, as `git apply` takes them; files git does not know are new files in it."""
    if git is None or not git.is_dirty:
        return
    root = Path(git.root)
    base = git.commit or EMPTY_TREE
    kept, left_out, num_bytes = [], [], 0
    for name, text in (*_changed_files(root, base), *_new_files(root)):
        clean = None if text is None else _clean(name, text)
        content = None if clean is None else clean.encode(errors="surrogateescape")
        if content is None or num_bytes + len(content) > MAX_BYTES:
            left_out.append(name)
        else:
            kept.append(content)
            num_bytes += len(content)
    head = _head(base, left_out).encode(errors="surrogateescape")
    with suppress(OSError):  # a disk that refuses this refuses what comes next too, and that is said
        (run_folder / DIFF_FILE).write_bytes(head + b"".join(kept))


def _changed_files(root: Path, base: str) -> Iterator[tuple[str, str | None]]:
    """(file, its part of the diff) of those git knows; None where that part is too long."""
    diff = read_from_git(root, *DIFF, base)
    if diff is None:
        yield "every changed file, since git gave no diff", None
        return
    for part in re.split(rb"(?m)^(?=diff --git )", diff)[1:]:  # a line of a file begins with a space, + or -
        name = _text_of(part.partition(b"\n")[0]).rpartition(" b/")[2].strip('"')
        yield name, _text_of(part) if len(part) <= MAX_BYTES else None


def _text_of(content: bytes) -> str:
    """Bytes that are no UTF-8 come back as they were, once encoded again."""
    return content.decode(errors="surrogateescape")


def _new_files(root: Path) -> Iterator[tuple[str, str | None]]:
    """The files git neither knows nor ignores; None where one is no text, too long, or of a name git would quote."""
    names = _text_of(read_from_git(root, "ls-files", "--others", "--exclude-standard", "-z") or b"")
    for name in sorted(filter(None, names.split("\0"))):
        try:
            text = _text(root / name)
        except OSError:
            continue  # gone meanwhile, or not ours to read
        yield name, None if text is None or not PLAIN_NAME.fullmatch(name) else _as_added(root / name, name, text)


def _text(file: Path) -> str | None:
    if file.is_symlink() or not file.is_file() or file.stat().st_size > MAX_NEW_FILE_BYTES:
        return None
    content = file.read_bytes()
    return None if b"\0" in content else _text_of(content)


def _as_added(file: Path, name: str, text: str) -> str:
    mode = "100755" if os.access(file, os.X_OK) else "100644"
    lines = [f"diff --git a/{name} b/{name}", f"new file mode {mode}"]
    if text:
        added = text.split("\n")
        ends_whole = added[-1] == ""
        added = added[:-1] if ends_whole else added
        lines += ["--- /dev/null", f"+++ b/{name}" + "\t" * (" " in name), f"@@ -0,0 +1,{len(added)} @@"]
        lines += [f"+{line}" for line in added] + [r"\ No newline at end of file"] * (not ends_whole)
    return "\n".join(lines) + "\n"


def _clean(name: str, text: str) -> str | None:
    """Without secrets; None for a file that is one itself."""
    path = PurePath(name)
    if path.suffix in PROGRAM_SUFFIXES:
        return without_secrets(text)
    if SECRET_FILE.fullmatch(path.name) or path.name.startswith(".env"):
        return None
    return "\n".join(map(without_secret_line, without_secrets(text).split("\n")))


def _head(base: str, left_out: list[str]) -> str:
    """Lines before the first file, which `git apply` passes over."""
    lines = [f"# What was not committed on top of {base}, for `git apply`; what looked like a secret is hidden."]
    if left_out:
        names = ", ".join(left_out[:MAX_NAMES]) + ", ..." * (len(left_out) > MAX_NAMES)
        lines.append(f"# Left out ({len(left_out)} files: too long, no text, or a secret as a whole): {names}")
    return "\n".join(lines) + "\n"
