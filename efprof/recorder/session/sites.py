"""Where in the user's code something happened: `file:line:function`, and the texts of those files."""

import importlib.metadata
import linecache
import os
import re
import site
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from efprof.artifacts.run_file import SourceText
from efprof.artifacts.steps import MAX_FRAMES
from efprof.recorder.session.redaction import without_secrets
from efprof.recorder.session.writing import is_of_a_signal

MAX_SOURCE_BYTES = 1024**2
"""A longer file is generated; nobody wants its text in a report."""
INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\](?!(?:torch|triton|efprof)[/\\])(.+)", re.DOTALL)
"""A file of a library, from its package on."""
PACKAGES = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
"""Of any environment: one that PYTHONPATH or a .pth file names, as clusters have, or one that a program vendors."""
TYPED_IN = ("<ipython-input-", "<stdin>")
"""What Python calls code that is in no file, but the user's: an IPython prompt's, or piped into Python."""


class Sites:
    """Tells user code from libraries, names places in it, and keeps the text of each file it names."""

    def __init__(self, root: Path, keep: Callable[[SourceText], None]) -> None:
        self._root = f"{os.path.realpath(root)}{os.sep}"
        self._start = os.getcwd()  # noqa: PTH109 - what Python calls files is relative to it, wherever the program goes
        self._keep = keep
        self.own_package = _package_that_runs()
        self._script = os.path.abspath(sys.argv[0]) if sys.argv else ""  # noqa: PTH100 - links stay as they are spelled
        self._names: dict[str, str] = {}
        self.is_user_file = cache(self._is_written_by_user)
        self.absolute = cache(self._find_on_path)
        self._library_file = cache(_library_file)

    def is_user_code(self, code: CodeType) -> bool:
        """Whether this code was written by the user: not Python's own, not an installed library, not ours."""
        return self.is_user_file(code.co_filename)

    def of_caller(self, frame: FrameType | None = None) -> str | None:
        """The user's line that called this, or that `frame` is of or was called from."""
        user = next(self.user_frames(frame), None)
        return None if user is None else self.of_line(user.f_code, user.f_lineno)

    def line_and_library(self, frame: FrameType | None = None) -> tuple[str | None, tuple[str, ...]]:
        """The user's line that led here, and the innermost frames of libraries in between."""
        between = list[str]()
        for one in callers(frame):
            code = one.f_code
            if self.is_user_code(code):
                return self.of_line(code, one.f_lineno), tuple(between)
            if len(between) < MAX_FRAMES and (file := self._library_file(code.co_filename)):
                between.append(f"{file}:{one.f_lineno}:{code.co_qualname}")
        return None, ()

    def user_frames(self, frame: FrameType | None = None) -> Iterator[FrameType]:
        """Of these callers, those whose code the user wrote."""
        return (one for one in callers(frame) if self.is_user_code(one.f_code))

    def of_line(self, code: CodeType, line: int) -> str:
        return f"{self.file(code.co_filename)}:{line}:{code.co_qualname}"

    def file(self, path: str) -> str:
        """The name of a file in reports: relative to the repository. The text of a user's file is kept."""
        name = self._names.get(path)
        if name is None:
            real = path if path.startswith("<") else os.path.realpath(os.path.join(self._start, path))  # noqa: PTH118
            name = self._names[path] = real.removeprefix(self._root) if real.startswith(self._root) else path
            if self.is_user_file(path):
                text = _text_of(Path(self._start) / path) or _typed_text(path)
                if text is not None:
                    self._keep(SourceText(file=name, text=without_secrets(text)))
        return name

    def keep_all(self) -> None:
        """Keep the text of all the user's files that are loaded, whether a site of theirs was named or not."""
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if file and self.is_user_file(file):
                self.file(file)
        for path in list(linecache.cache):
            if self.is_user_file(path) and _typed_text(path) is not None:
                self.file(path)

    def _find_on_path(self, shortened: str) -> str:
        """The path of a file that torch's profiler names without its folder on `sys.path`."""
        if os.path.isabs(shortened):  # noqa: PTH117 - called for every frame of a window
            return shortened
        for folder in [*sys.path, self._start]:
            candidate = os.path.join(self._start, folder, shortened)  # noqa: PTH118
            if os.path.isfile(candidate):  # noqa: PTH113
                return os.path.normpath(candidate)
        return shortened

    def _is_written_by_user(self, path: str) -> bool:
        if path.startswith("<"):
            return path.startswith(TYPED_IN)
        # As it is spelled: a link into a library is the library's.
        path = os.path.normpath(os.path.join(self._start, path))  # noqa: PTH118
        if path == self._script or (self.own_package and path.startswith(self.own_package)):
            return True
        return not (path.startswith(_library_folders()) or PACKAGES.search(path))


def _library_file(path: str) -> str | None:
    """`package/file.py`; None of what is Python's own, torch's or the recorder's."""
    found = INSTALLED.fullmatch(path)
    return found and found[1]


def _text_of(file: Path) -> str | None:
    """None of what is no file, too long or not to be read: a report names it all the same."""
    try:
        is_source = file.is_file() and file.stat().st_size <= MAX_SOURCE_BYTES
        return file.read_text(errors="replace") if is_source else None
    except OSError as error:
        if is_of_a_signal(error):
            raise
        return None


def _typed_text(path: str) -> str | None:
    """The text that IPython leaves for tracebacks; a notebook's kernel calls a cell by the path of no file."""
    entry = linecache.cache.get(path)
    return "".join(entry[2]) if entry and len(entry) == 4 and entry[1] is None else None


@cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages()}
    folders |= {site.getusersitepackages(), str(Path(__file__).parents[2])}
    real = {os.path.realpath(folder) for folder in folders}
    generated = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or os.path.join(tempfile.gettempdir(), "torchinductor_")  # noqa: PTH118
    return (*(f"{folder}{os.sep}" for folder in sorted(folders | real)), generated)


def _package_that_runs() -> str | None:
    """The folder of the package whose module or console script runs: the user's code even when it is installed."""
    module = _module_that_runs()
    package = sys.modules.get(module.split(".")[0]) if module else None
    file = getattr(package, "__file__", None)
    if package is None or not file or not hasattr(package, "__path__"):
        return None
    return f"{Path(file).parent}{os.sep}"


def _module_that_runs() -> str | None:
    if (spec := getattr(sys.modules["__main__"], "__spec__", None)) is not None:
        return str(spec.name)  # by `python -m`
    if sys.argv[:1] == ["-m"]:  # the same, while the module's package is imported, and torch with it
        return sys.orig_argv[-len(sys.argv)]
    script = Path(sys.argv[0]) if sys.argv else Path()
    if script.parent.name not in ("bin", "Scripts"):
        return None
    entry_points = importlib.metadata.entry_points(group="console_scripts", name=script.stem)
    return next((entry_point.module for entry_point in entry_points), None)


def user_file_of(kind: type[Any], sites: Sites) -> str | None:
    """The user's file that defines a class; in a notebook, whose main module has none, the methods tell it."""
    module_file = file_of_module(sys.modules.get(getattr(kind, "__module__", "")))
    methods = (value for value in vars(kind).values() if type(value) is FunctionType)
    files = [module_file] if module_file else [method.__code__.co_filename for method in methods]
    return next(filter(sites.is_user_file, files), None)


def file_of_module(module: object) -> str | None:
    """Once a script is over, Python has deleted the main module's `__file__`; its loader knows it."""
    file = getattr(module, "__file__", None)
    if file or module is not sys.modules.get("__main__"):
        return file
    return getattr(getattr(module, "__loader__", None), "path", None)


def callers(frame: FrameType | None = None) -> Iterator[FrameType]:
    """This frame, or the one that goes through them, and those that called it."""
    frame = frame or sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back
