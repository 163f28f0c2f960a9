"""The text of a trace file, decompressed and cut into blocks of whole events, of which few are in memory at once."""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO
from itertools import accumulate, compress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import msgspec
from isal import igzip, isal_zlib

from efprof.artifacts.trace.events import NO_JSON, Array, Block, Decoder, event_alone
from efprof.model import UnreadableInput

T = TypeVar("T")

BLOCK_BYTES = 1 << 18
"""Decoded, an event takes three times its text: in larger blocks they leave a processor's cache, and take a tenth more
time."""
MAX_BLOCK_BYTES = 64 << 20
"""A block that does not decode is joined with the next. Past this size it never will: the file is broken there."""
LONG_EVENT_BYTES = 1 << 16
"""Few first events are longer, and then all that was read is looked at."""
GZIP = b"\x1f\x8b"
_DAMAGED: Any = isal_zlib.error
EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
FIRST_TIME = re.compile(rb'"ts"\s*:\s*(\d+(?:\.\d+)?)')
BETWEEN = b",\n"
COMMA = re.compile(rb"\s*,\s*")


class Header(msgspec.Struct, frozen=True):
    """What a trace says beside its events; a bare list of events says nothing."""

    base_ns: int = msgspec.field(name="baseTimeNanoseconds", default=0)
    devices: list[dict[str, object]] = msgspec.field(name="deviceProperties", default_factory=list)
    distributed: dict[str, object] = msgspec.field(name="distributedInfo", default_factory=dict)

    @property
    def rank(self) -> int | None:
        """The rank that wrote it, where it says so."""
        rank = self.distributed.get("rank")
        return rank if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 else None


class TraceText:
    """A trace file, whose events are read once, from first to last; `header` is whole only after that.

    `head` is the text before the first event, `tail` what follows the end of their list. Blocks whose first event is
    later than `until_us` are left out.
    """

    def __init__(self, path: Path, *, until_us: float = math.inf) -> None:
        self.header = Header()
        self.head = self.tail = b""
        self._path = path
        self._until_us = until_us

    def blocks(self) -> Iterator[bytes]:
        """The text in pieces `[{...},{...}]`, cut where events seem to end; raises UnreadableInput.

        A nested object, or a string, can look like the end of an event: whoever decodes a piece finds out, and joins
        it with the next by `separator`.
        """
        try:
            with self._open() as file:
                yield from (block for block in self._cut(file) if begin_us(block) <= self._until_us)
        except EOFError:
            raise self.broken("it ends in the middle") from None
        except OSError as error:
            raise UnreadableInput(f"{self._path} cannot be read: {error.strerror or error}.") from None
        except _DAMAGED as error:
            raise self.broken(str(error)) from None

    def decoded(self, decode: Callable[[bytes], T | None]) -> Iterator[T]:
        """Each block decoded; `decode` gives None for a text that is no whole list of events."""
        text, tried_bytes = b"", 0
        for block in self.blocks():
            text = b"".join((text[:-1], self.separator, memoryview(block)[1:])) if text else block
            if len(text) < 2 * tried_bytes:
                continue  # joining twice as much each time keeps the work in proportion to the text
            found = decode(text)
            if found is not None:
                yield found
                text, tried_bytes = b"", 0
            elif len(text) > MAX_BLOCK_BYTES:
                raise self.broken(f"no end of an event in {len(text) >> 20} MiB")
            else:
                tried_bytes = len(text)
        if text:
            found = decode(text)
            if found is None:
                raise self.broken("its events are no JSON")
            yield found

    def broken(self, why: str) -> UnreadableInput:
        """The error to raise where the file is not what it should be."""
        return UnreadableInput(f"{self._path} is not a whole profiler trace ({why}); record or copy it again.")

    def _open(self) -> BinaryIO:
        if not size_of(self._path)[0]:
            return self._path.open("rb")
        return cast(BinaryIO, igzip.open(self._path, "rb"))  # type: ignore[no-untyped-call]

    def _cut(self, file: BinaryIO) -> Iterator[bytes]:
        head, text = self._head(file)
        self.head = head
        self.separator = b","
        cut = None
        while chunk := file.read(max(BLOCK_BYTES, len(text))):  # what has no end is looked at a few times only
            if cut is None:
                text, chunk = b"", text + chunk
                cut = self._cut_of(chunk)
            place = chunk.rfind(cut) if cut else -1
            if place >= 0:
                yield b"".join((b"[", text, memoryview(chunk)[: place + 1], b"]"))
                text = chunk[place + len(cut or b"") - 1 :]
                continue
            text += chunk
            if len(text) > MAX_BLOCK_BYTES:
                raise self.broken(f"no end of an event in {len(text) >> 20} MiB")
        events, tail = self._end(head, text)
        if EVENTS.search(tail):
            raise self.broken("it has two lists of traceEvents")
        self.header, self.tail = self._decoded_header(head + b"]" + tail), tail
        if events:
            yield b"[%b]" % events

    def _head(self, file: BinaryIO) -> tuple[bytes, bytes]:
        """What comes before the first event, `[` included, and what was read beyond."""
        text = b""
        while chunk := file.read(max(BLOCK_BYTES, len(text))):
            text += chunk
            start = text.lstrip()
            if start[:1] == b"[":
                return b"[", start[1:]
            for found in EVENTS.finditer(text):
                if _is_json(text[: found.end()] + b"]}"):
                    return text[: found.end()], text[found.end() :]
            if start[:1] != b"{" or len(text) > MAX_BLOCK_BYTES:
                break
        raise self.broken("it has no list of traceEvents, as torch.profiler writes" if text else "it is empty")

    def _cut_of(self, text: bytes) -> bytes | None:
        """How the file writes the end of an event and the start of the next; None until that is known."""
        start = len(text) - len(text.lstrip())
        for end in (start + LONG_EVENT_BYTES, len(text)):
            with suppress(ValueError):
                _, end = json.JSONDecoder().raw_decode(text[start:end].decode("latin-1"))
                break
        else:
            return None
        comma = COMMA.match(text, start + end)
        if comma is None or comma.end() == len(text):
            return None
        self.separator = comma[0]
        return b"}" + comma[0] + b"{"

    def _end(self, head: bytes, text: bytes) -> tuple[bytes, bytes]:
        """The last events and what follows their list: from its `]` on, the file must be whole.

        What follows may hold lists of its own; `]` inside an event leaves no JSON behind it.
        """
        start = b"[" if head == b"[" else b'{"":['
        padded, found = bytearray(start + text), None
        place = padded.rfind(b"]")
        while place >= len(start):
            covered = slice(place - len(start), place)
            saved, padded[covered] = padded[covered], start
            is_end = _is_json(memoryview(padded)[place - len(start) :])
            padded[covered] = saved
            if is_end:
                found = place
                if _is_json(b"[%b]" % bytes(padded[len(start) : place])):
                    break
            place = padded.rfind(b"]", 0, place)
        if found is None:
            raise self.broken("it ends in the middle")
        return bytes(padded[len(start) : found]).strip(), bytes(padded[found + 1 :])

    def _decoded_header(self, text: bytes) -> Header:
        if text[:1] == b"[":
            return Header()
        text = text.decode(errors="replace").encode()
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(text, type=Header, strict=False)
        return Header()


def size_of(path: Path) -> tuple[bool, int]:
    """Whether the file is packed, and its bytes; raises UnreadableInput."""
    try:
        with path.open("rb") as file:
            return file.read(2) == GZIP, path.stat().st_size
    except OSError as error:
        raise UnreadableInput(f"{path} cannot be read: {error.strerror or error}.") from None


def begin_us(block: bytes) -> float:
    """When its first event begins, by the file's own clock; 0 where none does."""
    found = FIRST_TIME.search(block)
    return float(found[1]) if found else 0.0


def told_until_us(path: Path, share: float) -> float:
    """The instant up to which this share of the text tells, by the file's own clock; raises UnreadableInput.

    A profiler writes kind by kind, each in order of time.
    """
    begins = sorted((begin_us(block), len(block)) for block in TraceText(path).blocks())
    sizes = accumulate(size for _, size in begins)
    most_bytes = share * sum(size for _, size in begins)
    return next((begin for (begin, _), size in zip(begins, sizes, strict=True) if size > most_bytes), math.inf)


def begins_as_trace(path: Path) -> bool:
    """Whether a file among others is meant as a trace, broken or not: by its first 64 KiB."""
    with suppress(UnreadableInput, OSError, EOFError, _DAMAGED), TraceText(path)._open() as file:
        start = file.read(1 << 16)
        return b'"traceEvents"' in start or start.lstrip()[:1] == b"["
    return True


def leading_header(path: Path) -> Header:
    """What a file says before its events, of which none is read; an empty header where that cannot be read."""
    text = TraceText(path)
    with suppress(UnreadableInput, OSError, EOFError, _DAMAGED), text._open() as file:
        head, _ = text._head(file)
        return text._decoded_header(head + b"]" + b"}" * (head != b"["))
    return Header()


def _is_json(text: bytes | memoryview) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def excerpt(path: Path, chosen: Callable[[Block], Array], added: Sequence[dict[str, object]]) -> bytes:
    """A packed trace of the events of which `chosen` is true, with all that the file says beside its events.

    `added` is at least one event. The file was read before: one that is broken raises UnreadableInput.
    """
    text, packed = TraceText(path), BytesIO()
    with cast(Any, igzip).open(packed, "wb") as file:
        for number, (texts, block) in enumerate(text.decoded(partial(_with_texts, Decoder()))):
            kept = compress(texts, chosen(block).tolist())
            file.write((b"" if number else text.head) + b"".join(bytes(one) + BETWEEN for one in kept))
        file.write(BETWEEN.join(map(msgspec.json.encode, added)) + b"]" + text.tail)
    return packed.getvalue()


def _with_texts(decoder: Decoder, text: bytes) -> tuple[Sequence[msgspec.Raw], Block] | None:
    """The columns of a block, and the text of each of its events."""
    block = decoder.block(text)
    if block is None:
        return None
    try:
        texts = msgspec.json.decode(text, type=list[msgspec.Raw])
    except msgspec.DecodeError:
        texts = msgspec.json.decode(NO_JSON.sub(b":null", text), type=list[msgspec.Raw])
    return [one for one in texts if event_alone(one) is not None] if block.num_unreadable else texts, block
