"""The start-up hook: Python imports this file by its name, because its folder leads PYTHONPATH.

It waits for torch to be imported and starts the recorder then, so that a child which never imports torch pays
for this file alone; and it hands over to the `sitecustomize` that would have run without it.
"""

import importlib
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class _TorchWatcher:
    """A finder that finds torch where it is, and starts the recorder once it is loaded."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                _start_recorder()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _start_recorder() -> None:
    try:
        from efprof.record.start import start
    except ImportError:  # another interpreter than the one efprof is installed in
        sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(_FOLDER))))
        try:
            from efprof.record.start import start
        except ImportError as error:
            print(f"efprof: this Python cannot record: {error}", file=sys.stderr)
            return
    start()


def _run_the_next_sitecustomize() -> None:
    """Import what our name hides, as if our folder were not there."""
    here = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _FOLDER]
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    if here is not None:
        sys.modules.setdefault("sitecustomize", here)


if os.environ.get("EFPROF_RECORD"):
    sys.meta_path.insert(0, _TorchWatcher())
_run_the_next_sitecustomize()
