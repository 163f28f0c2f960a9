"""Gives every Python that has this folder on PYTHONPATH a simulated device, as soon as it has imported torch.

The recorder starts at that import, too. Its finder leads `sys.meta_path`, and ours comes next: the recorder then finds
torch with a device.
"""

import atexit
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

TOTAL_BYTES = 139 * 2**30
"""Of an H200: what fits there fits here."""


class _DeviceAtImport:
    """A finder of torch alone."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_simulate(module: ModuleType) -> None:
                run(module)
                from tests.simulated_cuda.cuda import SimulatedCuda

                device = SimulatedCuda(total_bytes=TOTAL_BYTES).in_place()
                device.__enter__()
                atexit.register(device.__exit__, None, None, None)  # after the recorder, which registers later

            spec.loader.exec_module = run_and_simulate  # type: ignore[method-assign]
        return spec


def _watches_torch(finder: object) -> bool:
    return type(finder).__module__ == "sitecustomize" and not isinstance(finder, _DeviceAtImport)


sys.meta_path.insert(sum(map(_watches_torch, sys.meta_path[:1])), _DeviceAtImport())  # type: ignore[arg-type]
