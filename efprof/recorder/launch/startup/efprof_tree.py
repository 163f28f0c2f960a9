"""For a side of a comparison: modules come from its own tree instead of the user's, and what does not is noted.

The start-up hook imports it before anything of the program's, in every Python that the command starts. It imports no
more than that costs little, and nothing of efprof.
"""

from __future__ import annotations

import atexit
import json
import os
import sys

_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
"""The package that records: it may lie in the user's tree, and is not what is compared."""


class OwnTree:
    """`root` is the user's tree, `tree` what to use instead; all trees lie in `place`, and notes go to `notes`."""

    def __init__(self, root: str, tree: str, place: str, notes: str) -> None:
        self.root, self.tree, self.place, self.notes = root, tree, place, notes
        installed = [
            os.path.join(prefix, part)
            for prefix in {sys.prefix, sys.exec_prefix, sys.base_prefix}
            for part in ("bin", "lib", "lib64", "Lib", "Scripts")
        ]
        self._others = tuple(os.path.realpath(folder) + os.sep for folder in (*installed, _OURS))

    def is_users(self, path: str) -> bool:
        """True of a file or folder in the user's tree; an environment may lie there, efprof, and all trees."""
        if _is_in(os.path.abspath(path), self.place):
            return False
        real = os.path.realpath(path)
        return _is_in(real, self.root) and not f"{real}{os.sep}".startswith(self._others)

    def moved(self, path: str) -> str:
        """The same place in the side's own tree, where there is something."""
        if not self.is_users(path):
            return path
        there = os.path.normpath(os.path.join(self.tree, os.path.relpath(os.path.realpath(path), self.root)))
        return there if os.path.exists(there) else path

    def move_imports(self) -> None:
        """The path, and what finders of editable installations look up."""
        sys.path[:] = [self.moved(entry) if entry else entry for entry in sys.path]
        for name, module in list(sys.modules.items()):
            if name.startswith("__editable__"):
                places = vars(module).get("MAPPING", {})
                places |= {package: self.moved(place) for package, place in places.items()}
                for spaces in vars(module).get("NAMESPACES", {}).values():
                    spaces[:] = [self.moved(place) for place in spaces]
        redirected = sys.modules.get("editables.redirector")
        if redirected is not None:
            places = redirected.RedirectingFinder._redirections
            places |= {package: self.moved(place) for package, place in places.items()}

    def note_others(self) -> None:
        """At the end: the script and modules that came from the user's tree all the same."""
        files = [vars(module).get("__file__") for module in list(sys.modules.values())]
        files += sys.argv[:1]  # a script: Python has taken `__file__` out of `__main__` by now
        others = sorted(
            {file for file in files if isinstance(file, str) and os.path.exists(file) and self.is_users(file)}
        )
        if others:
            path = os.path.join(self.notes, f"{os.getpid()}.json")
            with open(path + ".part", "w", encoding="utf-8") as file:
                json.dump(others, file)
            os.replace(path + ".part", path)


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + os.sep)


def note_others() -> None:
    """The recorder calls it too: a program that is killed has no end of its own."""


def start(text: str) -> None:
    """`text` is what the variable holds."""
    global note_others
    own = OwnTree(**json.loads(text))
    own.move_imports()
    note_others = own.note_others
    atexit.register(note_others)
