"""Large traces made of real ones: their events again and again, later each time and with ids of their own.

The text of an event stays as its profiler wrote it, blanks and decimals included; only whole numbers in it change.
"""

import argparse
import re
from pathlib import Path
from typing import Any, Final, cast

from isal import igzip

from efprof.artifacts.trace.blocks import TraceText
from efprof.artifacts.trace.columns import COMPLETE
from efprof.artifacts.trace.read import read_window

TIME: Final = b"ts"
IDS: Final = (b"id", b"correlation", b"External id", b"Ev Idx", b"Sequence number", b"Python id", b"Python parent id")
SHIFTED: Final = re.compile(rb'"(%b)"\s*:\s*(?=\d)' % b"|".join((TIME, *IDS)))
DIGITS: Final = re.compile(rb"\d+")
GAP_US: Final = 1000
"""Between two repetitions."""


class RepeatedEvents:
    """The events of one file, cut at each number that a repetition shifts."""

    def __init__(self, path: Path) -> None:
        text = TraceText(path)
        pieces = list(text.blocks())
        self.separator = text.separator
        self._texts: list[bytes] = []
        self._numbers: list[int] = []
        self._is_time: list[bool] = []
        self._cut(self.separator.join(piece[1:-1] for piece in pieces))
        trace = read_window(path)
        complete = trace.phase == COMPLETE
        last_ns, first_ns = int(trace.end_ns[complete].max()), int(trace.start_ns[complete].min())
        self._span_us = (last_ns - first_ns) // 1000 + GAP_US
        self._num_ids = 1 + max((n for n, is_time in zip(self._numbers, self._is_time, strict=True) if not is_time))

    def repetition(self, number: int) -> bytes:
        """The text of all events, that many spans later."""
        shifts = (number * self._num_ids, number * self._span_us)
        pieces = [b""] * (2 * len(self._numbers) + 1)
        pieces[::2] = self._texts
        pieces[1::2] = [
            b"%d" % (value + shifts[is_time]) for value, is_time in zip(self._numbers, self._is_time, strict=True)
        ]
        return b"".join(pieces)

    def _cut(self, text: bytes) -> None:
        start = 0
        for key in SHIFTED.finditer(text):
            digits = DIGITS.match(text, key.end())
            assert digits is not None, "the pattern looks ahead for one"
            self._texts.append(text[start : digits.start()])
            self._numbers.append(int(digits[0]))
            self._is_time.append(key[1] == TIME)
            start = digits.end()
        self._texts.append(text[start:])


def make_trace(source: Path, target: Path, min_bytes: int) -> None:
    """Write a trace of at least so many bytes, unpacked; it has no header but that it is one."""
    events = RepeatedEvents(source)
    with cast(Any, igzip).open(target, "wb", compresslevel=1) as file:
        num_bytes = file.write(b'{"schemaVersion": 1, "traceEvents": [')
        number = 0
        while num_bytes < min_bytes:
            num_bytes += file.write((events.separator if number else b"") + events.repetition(number))
            number += 1
        file.write(b"]}")


def make_ranks(source: Path, folder: Path, num_ranks: int) -> Path:
    """A folder with the trace of each rank of a training, all like that of the source."""
    text = igzip.decompress(source.read_bytes())  # type: ignore[no-untyped-call]
    text = re.sub(rb'"distributedInfo"\s*:', b'"of the source":', text, count=1)
    folder.mkdir()
    for rank in range(num_ranks):
        head = b'{"distributedInfo": {"rank": %d, "world_size": %d},' % (rank, num_ranks)
        packed = igzip.compress(head + text.lstrip()[1:], compresslevel=1)
        (folder / f"rank{rank}.json.gz").write_bytes(packed)
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("min_bytes", type=int)
    make_trace(**vars(parser.parse_args()))
