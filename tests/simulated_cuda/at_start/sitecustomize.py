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

CYCLES_PER_MS = 10**6


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

                cuda = SimulatedCuda(total_bytes=TOTAL_BYTES)
                place = cuda.in_place()
                place.__enter__()
                atexit.register(place.__exit__, None, None, None)  # after the recorder, which registers later
                module.cuda._sleep = lambda cycles: cuda.launch(cycles / CYCLES_PER_MS)
                module.cuda.get_device_name = lambda _=None: "Simulated"
                module.cuda.set_sync_debug_mode = lambda _: None
                module._C._cuda_hasPrimaryContext = lambda index: index in cuda.contexts

            spec.loader.exec_module = run_and_simulate  # type: ignore[method-assign]
        return spec


def _watches_torch(finder: object) -> bool:
    return type(finder).__module__ == "sitecustomize" and not isinstance(finder, _DeviceAtImport)


sys.meta_path.insert(sum(map(_watches_torch, sys.meta_path[:1])), _DeviceAtImport())  # type: ignore[arg-type]
