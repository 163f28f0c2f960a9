"""The start-up hook: Python imports this file by its name, because its folder leads PYTHONPATH.

It waits for torch to be imported and starts the recorder then, so that a child which never imports torch pays
for this file alone; and it hands over to the `sitecustomize` that would have run without it.
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
    """A finder that lets the others find torch, and starts the recorder once it is loaded."""

    def __init__(self) -> None:
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
                    _start_recorder()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _find(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                return spec
        return None


def _start_recorder() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - the recorded Python may be another than ours
        sys.stderr.write("efprof: this Python is older than 3.11 and cannot record; training goes on\n")
        return
    try:
        from efprof.recorder.launch.start import start
    except ImportError:  # another interpreter than the one efprof is installed in
        sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(_FOLDER))))
        try:
            from efprof.recorder.launch.start import start
        except ImportError as error:
            sys.stderr.write(f"efprof: this Python cannot record, training goes on: {error}\n")
            return
    start()


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
if os.environ.get("EFPROF_RECORD"):
    sys.meta_path.insert(0, _TorchWatcher())
_run_the_next_sitecustomize()
