"""The machine, the repository and the settings a command is started in, without secrets; and what was not committed."""

import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath

from efprof.artifacts.processors import num_processors
from efprof.artifacts.run_file import DIFF_FILE, Git, Host
from efprof.artifacts.settings import read_configuration
from efprof.recorder.session.redaction import (
    without_secret_line,
    without_secret_values,
    without_secret_variables,
    without_secrets,
)
from efprof.units import MIB

KEPT_VARIABLES = re.compile(
    r"(OMP|MKL|KMP|OPENBLAS|NCCL|GLOO|CUBLAS|CUDNN)_\w+|CUDA_(VISIBLE_DEVICES|LAUNCH_BLOCKING|MODULE_LOADING)"
    r"|(PYTORCH|TORCH|TORCHINDUCTOR|TORCHDYNAMO)_\w+|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|PYTHONHASHSEED"
    r"|MALLOC_\w+|LD_PRELOAD"
)
"""Environment variables that change how training runs; no other is kept."""

GIT_TIMEOUT_S = 10
"""A status that takes longer walks a repository on a slow network drive; the run does without."""

DRIVER_FOLDER = Path("/proc/driver/nvidia")
"""Where the kernel module of NVIDIA's driver says what it is and what it drives."""

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""What git calls a tree without files: what a repository without a commit differs from."""


def kept_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables worth keeping; one that looks like a secret is not, whatever its name."""
    kept = {name: value for name, value in sorted(environment.items()) if KEPT_VARIABLES.fullmatch(name)}
    return without_secret_variables(kept)


def kept_configuration(files: Sequence[Path]) -> dict[str, str]:
    """The values of the user's configuration files, by key; raises EfprofError for a file that cannot be read."""
    return without_secret_values(read_configuration(files))


def describe_host() -> Host:
    """Processor, cores this process may use, memory; the name of the machine only as a hash."""
    return Host(
        name_hash=hashlib.sha256(platform.node().encode()).hexdigest()[:12],
        cpu=_cpu_model(),
        num_cpus=num_processors(),
        total_bytes=_total_memory(),
    )


def driver_version() -> str | None:
    """Of the NVIDIA driver; None where there is none, or it is not Linux's."""
    try:
        text = (DRIVER_FOLDER / "version").read_text()
    except OSError:
        return None
    found = re.search(r"NVRM version:.*?(\d+\.\d+(?:\.\d+)?)", text)
    return found.group(1) if found else None


def read_git(folder: Path) -> Git | None:
    """The repository `folder` lies in; None where it lies in none, or git is not installed."""
    root = _git(folder, "rev-parse", "--show-toplevel")
    if root is None:
        return None
    branch = _git(folder, "symbolic-ref", "--short", "-q", "HEAD")
    commit = _git(folder, "rev-parse", "-q", "--verify", "HEAD")
    changes = (_git(folder, "status", "--porcelain") or "").splitlines()
    return Git(
        root=root,
        branch=branch,
        commit=commit,
        is_dirty=bool(changes),
        num_untracked=sum(change.startswith("??") for change in changes),
    )


def read_from_git(folder: Path, *arguments: str) -> bytes | None:
    """What it prints; None where it fails, takes too long, or is not installed."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _git(folder: Path, *arguments: str) -> str | None:
    printed = read_from_git(folder, *arguments)
    return None if printed is None else printed.decode(errors="replace").strip()


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1) if found else platform.machine()


def _total_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


MAX_BYTES = MIB
"""Of the whole diff: a hand-written change is some kilobytes, and generated files are none of it."""

PROGRAM_SUFFIXES = frozenset({".py", ".pyi", ".pyx", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".js", ".rs"})
"""Files in which a secret stands in quotes; in any other, what follows `password:` is taken for one."""

SECRET_FILE = re.compile(
    r"(?i)\.env|.*\.(pem|key|p12|pfx|keystore|jks)|id_(rsa|dsa|ecdsa|ed25519)|\.(netrc|npmrc|pypirc|htpasswd)"
    r"|.*(credential|secret|token)s?(\.(json|ya?ml|toml|ini|cfg|txt))?"
)
"""Files whose whole content is a secret, as like as not."""

DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/")
"""Whatever the user's own configuration of git makes of a diff, this is one that can be applied."""


def keep_diff(run_folder: Path, git: Git | None) -> None:
    """Write what differs from the commit, if anything does, as `git apply` takes it; new files are none of it."""
    if git is None or not git.is_dirty:
        return
    base = git.commit or EMPTY_TREE
    diff = read_from_git(Path(git.root), *DIFF, base) or b""
    kept, num_left_out, num_bytes = [], 0, 0
    for part in re.split(rb"(?m)^(?=diff --git )", diff)[1:]:  # a line of a file begins with a space, + or -
        clean = _clean(part.decode(errors="surrogateescape")) if len(part) <= MAX_BYTES else None
        content = None if clean is None else clean.encode(errors="surrogateescape")
        if content is None or num_bytes + len(content) > MAX_BYTES:
            num_left_out += 1
        else:
            kept.append(content)
            num_bytes += len(content)
    if not kept and not num_left_out:
        return
    head = f"# What was not committed on top of {base}; what looked like a secret is hidden.\n"
    if num_left_out:
        head += f"# Left out: {num_left_out} files, too long or a secret as a whole.\n"
    with suppress(OSError):  # a disk that refuses this refuses what comes next too, and that is said
        (run_folder / DIFF_FILE).write_bytes(head.encode() + b"".join(kept))


def _clean(part: str) -> str | None:
    """One file's part of a diff without secrets; None for a file that is one itself."""
    path = PurePath(part.partition("\n")[0].rpartition(" b/")[2].strip('"'))
    if path.suffix in PROGRAM_SUFFIXES:
        return without_secrets(part)
    if SECRET_FILE.fullmatch(path.name) or path.name.startswith(".env"):
        return None
    return "\n".join(map(without_secret_line, without_secrets(part).split("\n")))
