"""The start-up hook: Python imports this file by its name, because its folder leads PYTHONPATH.

It waits for torch to be imported and starts the recorder then, or the tracer of a second run, so that a child which
never imports torch pays for this file alone; and it hands over to the `sitecustomize` that would have run without it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing `typing` for it would cost more than the rest of this file
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class _TorchWatcher:
    """A finder that lets the others find torch, and starts our module once it is loaded."""

    def __init__(self, module: str, what: str) -> None:
        self._module, self._what = module, what
        self._is_done = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch" or self._is_done:
            return None
        spec = self._find(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                if not self._is_done:  # a spec may be found many times before it is loaded
                    self._is_done = True
                    _start(self._module, self._what)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _find(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                return spec
        return None


def _start(module: str, what: str) -> None:
    """Where efprof is installed in another interpreter, its folder comes last."""
    if sys.version_info < (3, 11):  # noqa: UP036 - the program's Python may be another than ours
        sys.stderr.write(f"efprof: this Python is older than 3.11 and cannot {what}; training goes on\n")
        return
    from importlib import import_module

    try:
        found = import_module(module)
    except ImportError:
        sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(_FOLDER))))
        try:
            found = import_module(module)
        except ImportError as error:
            sys.stderr.write(f"efprof: this Python cannot {what}, training goes on: {error}\n")
            return
    found.start()


def _run_the_next_sitecustomize() -> None:
    """Import what our name hides, as if our folder were not there."""
    here = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _FOLDER]
    try:
        import sitecustomize  # type: ignore[import-not-found] # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    if here is not None:
        sys.modules.setdefault("sitecustomize", here)


if os.environ.get("EFPROF_TREE"):
    import efprof_tree  # type: ignore[import-not-found]

    efprof_tree.start(os.environ["EFPROF_TREE"])
if os.environ.get("EFPROF_HUNT"):
    sys.meta_path.insert(0, _TorchWatcher("efprof.recorder.hunt.traced", "trace"))
elif os.environ.get("EFPROF_RECORD"):
    sys.meta_path.insert(0, _TorchWatcher("efprof.recorder.launch.start", "record"))
_run_the_next_sitecustomize()
