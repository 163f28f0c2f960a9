"""Append-only files of one JSON object per line, readable whatever instant the writer died at."""

from pathlib import Path
from typing import TypeVar

import msgspec

from efprof.model import NotRecorded, UnreadableInput

T = TypeVar("T")


def read_lines(path: Path, kind: type[T], how_to_record: str) -> tuple[list[T], int]:
    """Decode every line as `kind`; returns the records and the number of lines dropped.

    A last line without its newline was torn by a crash and is dropped. A torn line in the middle (a disk that
    filled up) is dropped too. Raises NotRecorded where the file is missing.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise NotRecorded(f"{path.name} is missing; {how_to_record}") from None
    except OSError as error:
        raise UnreadableInput(f"{path} cannot be read: {error.strerror}.") from None
    decoder = msgspec.json.Decoder(kind)
    *lines, torn = content.split(b"\n")
    records, num_dropped = [], int(bool(torn))
    for line in lines:
        try:
            records.append(decoder.decode(line))
        except msgspec.DecodeError:
            num_dropped += 1
    return records, num_dropped
