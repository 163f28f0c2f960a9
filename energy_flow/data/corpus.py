"""Sentence pairs: from the documentation that every Python carries, or from a user's file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from energy_flow.errors import EnergyFlowError

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"])")
_SHORTEST_SENTENCE, _LONGEST_SENTENCE = 25, 400  # characters; outside it is mostly headings and tables


class TextPair(NamedTuple):
    """A text and the one that it is to be carried into."""

    input_text: str
    target_text: str


def python_documentation_pairs() -> list[TextPair]:
    """Consecutive sentences of each of Python's help topics (`pydoc_data.topics`)."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise EnergyFlowError("this Python has no pydoc_data.topics; give your own pairs by --pairs") from error
    return [TextPair(*pair) for name in sorted(topics) for pair in pairwise(_sentences(topics[name]))]


def pairs_of_file(file: Path) -> Iterator[TextPair]:
    """The pairs of a `.tsv` file (input, tab, target) or a `.jsonl` file (objects with `input` and `target`).

    They are read one by one as they are asked for, so a file may be larger than memory.

    Raises:
        EnergyFlowError: naming the file, and the line where one is wrong, once that line is reached.

    """
    readers = {".tsv": _pair_of_tsv_line, ".jsonl": _pair_of_json_line}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise EnergyFlowError(f"{file} is neither .tsv nor .jsonl; give pairs in one of these forms")
    is_empty = True
    for number, line in _lines(file):
        if not line.strip():
            continue
        pair = reader(line)
        if isinstance(pair, str):
            raise EnergyFlowError(f"{file}:{number} {pair}")
        is_empty = False
        yield pair
    if is_empty:
        raise EnergyFlowError(f"{file} has no pairs; give at least one")


def _sentences(topic: str) -> Iterator[str]:
    """The sentences of a topic's prose; indented blocks (code, grammar) and ruled headings are left out."""
    for paragraph in re.split(r"\n\s*\n", topic):
        lines = paragraph.splitlines()
        if any(line.startswith(" ") or re.fullmatch(r"[*=\-~^]{3,}", line) for line in lines):
            continue
        for sentence in _SENTENCE_END.split(" ".join(lines)):
            if _SHORTEST_SENTENCE <= len(sentence) <= _LONGEST_SENTENCE:
                yield sentence


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Each line of the file with its number, the first one without a byte order mark."""
    try:
        with file.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
    except OSError as error:
        raise EnergyFlowError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise EnergyFlowError(f"{file}:{number} is not UTF-8 text; save the file as UTF-8") from error


def _pair_of_tsv_line(line: str) -> TextPair | str:
    """The pair, or what is wrong with the line."""
    columns = [column.strip() for column in line.split("\t")]
    if len(columns) != 2 or not all(columns):
        return f"has {len(columns)} columns with text or without; write input, one tab, target"
    return TextPair(*columns)


def _pair_of_json_line(line: str) -> TextPair | str:
    """The pair, or what is wrong with the line."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        return f"is not JSON ({error.msg}); write one object to a line"
    if not isinstance(value, Mapping):
        return 'is not an object; write {"input": ..., "target": ...}'
    texts = [str(value[name]).strip() for name in ("input", "target") if isinstance(value.get(name), str)]
    if len(texts) != 2 or not all(texts):
        return 'needs text under both "input" and "target"'
    return TextPair(*texts)
