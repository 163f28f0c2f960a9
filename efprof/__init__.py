"""Finds why PyTorch training runs out of memory, is slow or turns to NaN, and says which line to change."""

from typing import TYPE_CHECKING

from efprof.recorder.session.current import stage, step

if TYPE_CHECKING:
    from efprof.recorder.launch.in_code import record

__all__ = ["__version__", "record", "stage", "step"]

__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    """`efprof.record`, imported when it is first used: what it needs takes long to import."""
    if name != "record":
        raise AttributeError(f"module 'efprof' has no attribute {name!r}")
    from efprof.recorder.launch.in_code import record

    return record
