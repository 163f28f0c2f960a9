"""sources.jsonl: the text of every source file that a recorded line lies in, as it was when it ran."""

from pathlib import Path

import msgspec

from efprof.artifacts.lines import read_lines
from efprof.model import NotRecorded

SOURCES_FILE = "sources.jsonl"


class SourceText(msgspec.Struct, kw_only=True):
    """One file; `file` is relative to the repository where it lies inside it."""

    file: str
    text: str


def read_sources(rank_folder: Path) -> dict[str, list[str]]:
    """The lines of every recorded source file by its name; empty where none was recorded."""
    try:
        records, _ = read_lines(rank_folder / SOURCES_FILE, SourceText, "record the run again.")
    except NotRecorded:
        return {}
    return {record.file: record.text.splitlines() for record in records}
