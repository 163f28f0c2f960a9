"""Every check of the machine, in one list."""

from pathlib import Path

from efprof.recorder.doctor import allocator, device, host, interpreter
from efprof.recorder.doctor.check import Check


def examine(folder: Path, runs: Path) -> list[Check]:
    """For training that is started in `folder` and recorded under `runs`; takes some seconds."""
    torch = interpreter.import_torch()
    return [
        *interpreter.checks(torch),
        *host.checks_of_place(folder, runs),
        *(device.checks(torch) if torch is not None else ()),
        *(allocator.checks(torch) if torch is not None else ()),
        *host.checks_of_memory(torch),
    ]
