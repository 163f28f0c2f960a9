"""Events of a trace from their text to columns: typed decoding of a block, and one array for each field."""

import re
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import compress
from typing import Any

import msgspec
import numpy as np

Array = np.ndarray[Any, Any]
Sparse = dict[str, tuple[Array, Array]]
"""For an argument, the places of the events that have it, and its values there."""

EXACT_US = 2.0**42
"""Up to 51 days in microseconds a float tells one nanosecond from the next; later times are read digit by digit."""
NO_JSON = re.compile(rb":\s*[+-]?(?:inf|nan|infinity)\b", re.IGNORECASE)
"""What C++ and Python write for a number that is none; kineto divides by durations of zero."""
NO_ID = -1
LAST_US = 4 * 10**15
"""A hundred years in microseconds; larger is a mistake, and twice as many nanoseconds no longer fit a column."""


NO_NUMBER = -(1 << 63)
"""What a column of integers has where an event has none: no size or number of anything."""
_NO_TEXT: Any = None
DIGITS = b"0123456789"
LEGACY: dict[int | str, str] = {"CPU functions": "cpu_op", "CUDA functions": "kernel"}
"""On a device it has the stretches of operators in place of kernels."""


class Arguments(msgspec.Struct, gc=False):
    """The arguments that efprof reads; others are skipped unread."""

    correlation: int | None = NO_NUMBER
    sequence: int | None = msgspec.field(name="Sequence number", default=NO_NUMBER)
    forward_thread: int | None = msgspec.field(name="Fwd thread id", default=NO_NUMBER)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=_NO_TEXT)
    call_stack: str | None = msgspec.field(name="Call stack", default=None)
    call_site: str | None = msgspec.field(name="Call site", default=None)
    total_bytes: int | None = msgspec.field(name="Total Allocated", default=NO_NUMBER)
    device_type: int | None = msgspec.field(name="Device Type", default=NO_NUMBER)
    waited_stream: int | None = msgspec.field(name="wait_on_stream", default=NO_NUMBER)
    collective: str | None = msgspec.field(name="Collective name", default=None)


def _event_type(time: type, zero: Any) -> Any:
    """One event, whatever its phase; times are in microseconds."""
    return msgspec.defstruct(
        "Event",
        [
            ("ph", str, ""),
            ("name", str, ""),
            ("cat", str, ""),
            ("pid", int | str, 0),
            ("tid", int | str, 0),
            ("ts", time, zero),
            ("dur", float, 0.0),
            ("id", int | str | None, NO_NUMBER),
            ("args", Arguments | None, None),
        ],
        gc=False,
    )


NUMBERS = {
    "sequence": np.int64,
    "forward_thread": np.int64,
    "total_bytes": np.int64,
    "device_type": np.int8,
    "waited_stream": np.int64,
}
"""Arguments that some events have, as numbers."""
TEXTS = ("shapes", "call_stack", "call_site", "collective")
"""The same as texts, each different one kept once."""
_EVENT = _event_type(float, 0.0)
_LATE_EVENT = _event_type(msgspec.Raw, msgspec.Raw(b"0"))
"""Its start is left as text."""


@dataclass(kw_only=True, slots=True)
class Block:
    """The columns of a stretch of events, and what their codes stand for.

    `sparse` has, for an argument, the places of the events that have it, and its values there.
    """

    dense: dict[str, Array]
    sparse: Sparse
    texts: list[str]
    lanes: list[tuple[int | str, int | str]]
    num_unreadable: int = 0


class Decoder:
    """Decodes the blocks of one file, and learns from them whether a float can hold its times."""

    def __init__(self) -> None:
        self._become(_EVENT)

    def block(self, text: bytes) -> Block | None:
        """The columns of a JSON list of events; None where the text is no list."""
        found = self.events(text)
        if found is None:
            return None
        events, num_unreadable = found
        fields = _fields(events, _EVENT)
        if self._kind is _EVENT and max(fields["ts"], default=0.0) >= EXACT_US:
            self._become(_LATE_EVENT)
            return self.block(text)
        if not events or type(events[0]) is _EVENT:
            return _block(fields, num_unreadable, nanoseconds(fields["ts"]))
        starts = late_nanoseconds(fields["ts"])
        if starts is not None:
            return _block(fields, num_unreadable, starts)
        found = self._one_by_one(NO_JSON.sub(b":null", text))
        if found is None:
            return None
        fields = _fields(found[0], _EVENT)
        return _block(fields, found[1], nanoseconds(fields["ts"]))

    def events(self, text: bytes) -> tuple[list[Any], int] | None:
        """The events of a JSON list, and how many more cannot be read; None where the text is no list."""
        try:
            events: list[Any] = self._decoder.decode(text)
            return events, 0
        except msgspec.ValidationError:
            return self._one_by_one(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            mended = text.decode(errors="replace").encode()  # a name that C++ cut, or that was none of UTF-8
            if mended == text:
                mended = NO_JSON.sub(b":null", text)
            return self.events(mended) if mended != text else None

    def _become(self, kind: Any) -> None:
        """Times are floats; where those are not exact, texts: msgspec would take 10**15 + 0.001 for an integer."""
        self._kind = kind
        self._decoder: Any = msgspec.json.Decoder(list[kind], strict=False)

    @staticmethod
    def _one_by_one(text: bytes) -> tuple[list[Any], int] | None:
        try:
            found = msgspec.json.decode(text.decode(errors="replace"), type=list[msgspec.Raw])
        except (msgspec.DecodeError, RecursionError):
            return None
        events = [event for event in map(event_alone, found) if event is not None]
        return events, len(found) - len(events)


def event_alone(raw: msgspec.Raw) -> Any:
    """One event, without its arguments where one of these is not of its type; None where it cannot be read."""
    text = bytes(raw).decode(errors="replace")
    with suppress(msgspec.DecodeError):
        return msgspec.json.decode(text, type=_EVENT, strict=False)
    with suppress(msgspec.DecodeError, OverflowError, TypeError):
        return msgspec.convert({**msgspec.json.decode(text), "args": None}, _EVENT, strict=False)
    return None


class _Codes(dict[Any, int]):
    """A number for each different value, in the order they come."""

    def __missing__(self, value: Any) -> int:
        code = self[value] = len(self)
        return code

    def of(self, values: Iterable[Any]) -> Array:
        return np.fromiter(map(self.__getitem__, values), np.int32)


def _fields(found: Iterable[Any], kind: Any) -> dict[str, tuple[Any, ...]]:
    """The fields of structs of one kind: the fastest way that Python has to turn them round."""
    names = kind.__struct_fields__
    return dict(zip(names, zip(*map(msgspec.structs.astuple, found), strict=True), strict=False)) or dict.fromkeys(
        names, ()
    )


def _block(event: dict[str, tuple[Any, ...]], num_unreadable: int, starts: Array) -> Block:
    texts, lanes = _Codes(), _Codes()
    everywhere = np.arange(len(event["ph"]), dtype=np.int32)
    places, with_arguments = _present(everywhere, event["args"])
    argument = _fields(with_arguments, Arguments)
    ids = np.full(len(everywhere), NO_ID, np.int64)
    for here, numbers in (_numbers(places, argument["correlation"]), _numbers(everywhere, event["id"])):
        ids[here] = numbers
    dense = {
        "phase": _phases(event["ph"]),
        "name": texts.of(event["name"]),
        "category": texts.of(_categories(event)),
        "lane": lanes.of(zip(event["pid"], event["tid"], strict=True)),
        "start_ns": starts,
        "duration_ns": nanoseconds(event["dur"]),
        "id": ids,
    }
    sparse = {}
    for name, kind in NUMBERS.items():
        here, numbers = _numbers(places, argument[name])
        if len(here):
            sparse[name] = here, numbers.astype(kind, copy=False)
    for name in TEXTS:
        here, values = _present(places, argument[name])
        if values:
            different = _Codes()
            codes = different.of(map(bytes, values) if name == "shapes" else values)
            sparse[name] = here, texts.of(map(_text, different))[codes]
    return Block(dense=dense, sparse=sparse, texts=list(texts), lanes=list(lanes), num_unreadable=num_unreadable)


def _categories(event: dict[str, tuple[Any, ...]]) -> Iterable[str]:
    """As they stand there; the autograd profiler of before torch 1.8.1 names none, but processes after them."""
    if LEGACY.keys().isdisjoint(event["pid"]):
        return event["cat"]
    return (cat or LEGACY.get(pid, "") for cat, pid in zip(event["cat"], event["pid"], strict=True))


def _phases(found: Sequence[str]) -> Array:
    """Their first characters."""
    text = "".join(found)
    if len(text) != len(found) or "" in found:
        text = "".join(one[:1] or "?" for one in found)
    return np.frombuffer(text.encode("ascii", "replace"), np.uint8)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


def _present(places: Array, values: Sequence[Any]) -> tuple[Array, Sequence[Any]]:
    """The places of the values that are there and not empty, and these."""
    if values.count(None) == len(values):
        return places[:0], []
    is_there = list(map(bool, values))
    return places[np.fromiter(is_there, bool, len(values))], list(compress(values, is_there))


def _numbers(places: Array, values: Sequence[Any]) -> tuple[Array, Array]:
    """The same of integers, for which no loop in Python is needed."""
    if values.count(NO_NUMBER) == len(values):
        return places[:0], np.empty(0, np.int64)
    try:
        numbers = integers(values)
    except (TypeError, ValueError):  # a null, or the name of a flow
        numbers = integers([NO_NUMBER if value is None else _id(value) for value in values])
    is_there = numbers != NO_NUMBER
    return places[is_there], numbers[is_there]


def nanoseconds(microseconds: Sequence[float]) -> Array:
    """A trace's times, exact; those that no clock shows are cut to the nearest that one can."""
    times: Array = np.maximum(np.minimum(np.array(microseconds, np.float64), LAST_US), -LAST_US)
    whole: Array = np.floor(times)
    exact: Array = whole.astype(np.int64) * 1000 + np.rint((times - whole) * 1000).astype(np.int64)
    return exact


def late_nanoseconds(microseconds: Sequence[msgspec.Raw]) -> Array | None:
    """The same of times that a float cannot hold, from their text; None where one is no number.

    A profiler writes all of them whole, or all with three decimals; for those that other tools wrote, Python's
    decimals take ten times as long.
    """
    text = b",".join(microseconds)
    signs = text.translate(None, DIGITS)
    if signs == b"," * (len(microseconds) - 1):
        return np.minimum(np.fromstring(text, np.int64, sep=","), LAST_US) * 1000
    if signs == b".," * (len(microseconds) - 1) + b"." and _have_thousandths(text):
        return np.minimum(np.fromstring(text.replace(b".", b""), np.int64, sep=","), LAST_US * 1000)
    try:
        exact = [Decimal(bytes(time).decode().strip('"')) for time in microseconds]
        return integers([round(min(max(time, Decimal(-LAST_US)), Decimal(LAST_US)) * 1000) for time in exact])
    except (InvalidOperation, ValueError):
        return None


def _have_thousandths(text: bytes) -> bool:
    signs = np.frombuffer(text + b",", np.uint8)
    return bool((np.flatnonzero(signs == ord(",")) - np.flatnonzero(signs == ord(".")) == len(".000")).all())


def integers(values: Sequence[int], kind: Any = np.int64) -> Array:
    """A column of integers; what does not fit is cut to its lowest bits."""
    try:
        return np.array(values, kind)
    except OverflowError:
        bits = 8 * np.dtype(kind).itemsize
        return np.array([(value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1) for value in values], kind)


def _id(value: int | str) -> int:
    """Flows are numbered; other tools name them by texts, which only have to differ."""
    for base in (10, 0):
        with suppress(ValueError):
            return value if isinstance(value, int) else int(value, base)
    return zlib.crc32(str(value).encode())
