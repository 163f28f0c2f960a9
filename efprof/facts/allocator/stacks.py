"""Which line of the user's an allocation came from, by the stack that its snapshot holds."""

import re
from collections.abc import Mapping
from typing import Final

from efprof.artifacts.snapshot import Frames

LIBRARIES: Final = re.compile(
    r"[/\\](?:site-packages|dist-packages)[/\\]|[/\\]lib[/\\]python3(?:\.\d+)?[/\\]|^<(?!ipython|stdin)|[/\\]torch[/\\]csrc[/\\]"
)
"""Of packages, of Python's own library, and what has no file; a notebook's cells and what was typed are the user's."""

PYTHON_FILE: Final = re.compile(r"\.py$|^<ipython|^<stdin|ipykernel_")
"""All others are C++."""


class UserLines:
    """`file:line:function` of the innermost frame that is the user's, looked up once per stack.

    Snapshots share the frames among all events of a stack, if not the list of them, so their identity stands for it.
    """

    def __init__(self, working_folder: str = "") -> None:
        """Files below `working_folder` are named as they are called from there."""
        self._folder = working_folder.rstrip("/") + "/" if working_folder else ""
        self._known: dict[tuple[int, ...], str | None] = {}

    def site(self, frames: Frames) -> str | None:
        """None where no frame is the user's: a backward pass on CUDA runs in a thread without Python."""
        if not isinstance(frames, list) or not frames:
            return None
        key = tuple(map(id, frames))
        if key not in self._known:
            self._known[key] = next(filter(None, map(self._user_site, frames)), None)
        return self._known[key]

    def _user_site(self, frame: object) -> str | None:
        if not isinstance(frame, Mapping):
            return None
        name, line, function = frame.get("filename"), frame.get("line"), frame.get("name")
        if not isinstance(name, str) or not isinstance(line, int) or not isinstance(function, str):
            return None
        if line < 1 or not PYTHON_FILE.search(name) or LIBRARIES.search(name):
            return None
        return f"{name.removeprefix(self._folder)}:{line}:{function.replace(':', ' ')}"
