"""What `efprof record` was asked to record, handed to the training process through the environment."""

import os
from pathlib import Path
from typing import Final

import msgspec

VARIABLE: Final = "EFPROF_RECORD"

DEFAULT_WINDOWS: Final = ((5, 7), (30, 32), (300, 302), (3000, 3002))
"""Half-open ranges of steps: one soon after warm-up, then ever later ones, each ten times rarer."""


class Options(msgspec.Struct, kw_only=True, frozen=True):
    """`root` is the folder that file names are relative to; `windows` are half-open ranges of steps."""

    run_folder_name: str
    root_name: str
    windows: tuple[tuple[int, int], ...] = DEFAULT_WINDOWS

    @property
    def run_folder(self) -> Path:
        """Where this run is written."""
        return Path(self.run_folder_name)

    @property
    def root(self) -> Path:
        """The repository, or the working folder where there is none."""
        return Path(self.root_name)


def read_options() -> Options | None:
    """The options of the recording this process belongs to; None where it is not being recorded."""
    text = os.environ.get(VARIABLE)
    try:
        return msgspec.json.decode(text, type=Options) if text else None
    except msgspec.DecodeError:  # not ours: an efprof of another version set it
        return None


def encode_options(options: Options) -> str:
    """The value of the environment variable."""
    return msgspec.json.encode(options).decode()
