"""Events of a trace from their text to columns: typed decoding of a block, and one array for each field."""

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import msgspec
import numpy as np

Array = np.ndarray[Any, Any]

EXACT_US: Final = 2.0**42
"""Up to 51 days in microseconds a float tells one nanosecond from the next; later times are decoded as decimals."""
LATE_FRACTION: Final = re.compile(rb'"ts"\s*:\s*"?\d{13,}\.\d*[1-9]')
"""A time past that with thousandths; many files have whole microseconds, for which a float is enough."""
NO_JSON: Final = re.compile(rb":\s*[+-]?(?:inf|nan|infinity)\b", re.IGNORECASE)
"""What C++ and Python write for a number that is none; kineto divides by durations of zero."""
NO_ID: Final = -1
LAST_US: Final = 4e15
"""A hundred years in microseconds; larger is a mistake, and twice as many nanoseconds no longer fit a column."""


class Arguments(msgspec.Struct, gc=False):
    """The arguments that efprof reads; others are skipped unread."""

    correlation: int | None = None
    sequence: int | None = msgspec.field(name="Sequence number", default=None)
    forward_thread: int | None = msgspec.field(name="Fwd thread id", default=None)
    python_id: int | None = msgspec.field(name="Python id", default=None)
    python_parent: int | None = msgspec.field(name="Python parent id", default=None)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    call_stack: str | None = msgspec.field(name="Call stack", default=None)
    call_site: str | None = msgspec.field(name="Call site", default=None)
    num_bytes: int | None = msgspec.field(name="Bytes", default=None)
    address: int | None = msgspec.field(name="Addr", default=None)
    total_bytes: int | None = msgspec.field(name="Total Allocated", default=None)
    device_type: int | None = msgspec.field(name="Device Type", default=None)
    copied_bytes: int | None = msgspec.field(name="bytes", default=None)
    waited_stream: int | None = msgspec.field(name="wait_on_stream", default=None)
    collective: str | None = msgspec.field(name="Collective name", default=None)
    label: str | None = msgspec.field(name="name", default=None)


def _event_type(time: type) -> Any:
    """One event, whatever its phase; times are in microseconds."""
    zero = time(0)
    return msgspec.defstruct(
        "Event",
        [
            ("ph", str, ""),
            ("name", str, ""),
            ("cat", str, ""),
            ("pid", int | str, 0),
            ("tid", int | str, 0),
            ("ts", time, zero),
            ("dur", time, zero),
            ("id", int | str | None, None),
            ("args", Arguments | None, None),
        ],
        gc=False,
    )


NUMBERS: Final = {
    "sequence": np.int64,
    "forward_thread": np.int64,
    "python_id": np.int64,
    "python_parent": np.int64,
    "num_bytes": np.int64,
    "address": np.int64,
    "total_bytes": np.int64,
    "device_type": np.int8,
    "copied_bytes": np.int64,
    "waited_stream": np.int64,
}
"""Arguments that some events have, as numbers."""
TEXTS: Final = ("shapes", "call_stack", "call_site", "collective", "label")
"""The same as texts, each different one kept once."""
_EVENTS: Final[dict[type, Any]] = {time: _event_type(time) for time in (float, Decimal)}


@dataclass(kw_only=True, slots=True)
class Block:
    """The columns of a stretch of events, and what their codes stand for.

    `sparse` has, for an argument, the places of the events that have it, and its values there.
    """

    dense: dict[str, Array]
    sparse: dict[str, tuple[Array, Array]]
    texts: list[str]
    lanes: list[tuple[int | str, int | str]]
    num_unreadable: int = 0


class Decoder:
    """Decodes the blocks of one file, and learns from them whether its times need decimals."""

    def __init__(self) -> None:
        self._decoders: dict[type, Any] = {
            time: msgspec.json.Decoder(_list_of(kind), strict=False) for time, kind in _EVENTS.items()
        }
        self._time: type = float

    def block(self, text: bytes) -> Block | None:
        """The columns of a JSON list of events; None where the text is no list."""
        found = self.events(text)
        if found is None:
            return None
        events, num_unreadable = found
        times = [event.ts for event in events]
        if self._time is float and max(times, default=0.0) >= EXACT_US and LATE_FRACTION.search(text):
            self._time = Decimal
            return self.block(text)
        return _block(events, times, num_unreadable)

    def events(self, text: bytes) -> tuple[list[Any], int] | None:
        """The events of a JSON list, and how many more cannot be read; None where the text is no list."""
        try:
            events: list[Any] = self._decoders[self._time].decode(text)
            return events, 0
        except msgspec.ValidationError:
            return self._one_by_one(text)
        except UnicodeDecodeError:  # in a name that C++ cut, or that was none of UTF-8
            return self.events(text.decode(errors="replace").encode())
        except (msgspec.DecodeError, RecursionError):
            repaired, num_repaired = NO_JSON.subn(b":null", text)
            return self.events(repaired) if num_repaired else None

    def _one_by_one(self, text: bytes) -> tuple[list[Any], int] | None:
        """Where a field is not of its type, its event is kept without it; without its time, an event has no place."""
        try:
            found = msgspec.json.decode(text.decode(errors="replace"))
        except (msgspec.DecodeError, RecursionError):
            return None
        events = [_converted(event, _EVENTS[self._time]) for event in found]
        kept = [event for event in events if event is not None]
        return kept, len(events) - len(kept)


def _list_of(kind: Any) -> Any:
    return list[kind]


def _converted(found: Any, kind: Any) -> Any:
    if not isinstance(found, dict):
        return None
    fields: dict[str, Any] = {name: found[name] for name in ("ts", "dur") if name in found}
    fields |= {name: str(found[name]) for name in ("ph", "name", "cat") if name in found}
    fields |= {name: _number_or_text(found[name]) for name in ("pid", "tid", "id") if name in found}
    arguments = found.get("args")
    given = arguments.items() if isinstance(arguments, dict) else ()
    fields["args"] = {name: value for name, value in given if _is_argument(name, value)}
    try:
        return msgspec.convert(fields, kind, strict=False)
    except (msgspec.ValidationError, OverflowError):
        return None


def _is_argument(name: str, value: object) -> bool:
    try:
        msgspec.convert({name: value}, Arguments, strict=False)
    except (msgspec.ValidationError, TypeError, OverflowError):
        return False
    return True


def _number_or_text(value: object) -> int | str:
    return value if isinstance(value, int) else str(value)


class _Codes(dict[Any, int]):
    """A number for each different value, in the order they come."""

    def __missing__(self, value: Any) -> int:
        code = self[value] = len(self)
        return code

    def of(self, values: Iterable[Any]) -> Array:
        return np.fromiter(map(self.__getitem__, values), np.int32)


def _block(events: list[Any], times: list[Any], num_unreadable: int) -> Block:
    texts, lanes = _Codes(), _Codes()
    places = np.array([place for place, event in enumerate(events) if event.args is not None], np.int64)
    arguments = [event.args for event in events if event.args is not None]
    ids = np.full(len(events), NO_ID, np.int64)
    for here, numbers in (
        _present(places, [one.correlation for one in arguments]),
        _present(np.arange(len(events)), [event.id for event in events]),
    ):
        ids[here] = integers(list(map(_id, numbers)))
    dense = {
        "phase": np.array([ord(event.ph[:1] or "?") & 0x7F for event in events], np.uint8),
        "name": texts.of([event.name for event in events]),
        "category": texts.of([event.cat for event in events]),
        "lane": lanes.of([(event.pid, event.tid) for event in events]),
        "start_ns": nanoseconds(times),
        "duration_ns": nanoseconds([event.dur for event in events]),
        "id": ids,
    }
    sparse = {}
    for name, kind in NUMBERS.items():
        here, values = _present(places, [getattr(one, name) for one in arguments])
        if values:
            sparse[name] = here, integers(values, kind)
    for name in TEXTS:
        here, values = _present(places, [getattr(one, name) or None for one in arguments])
        if values:
            sparse[name] = here, texts.of(map(_text, values))
    return Block(dense=dense, sparse=sparse, texts=list(texts), lanes=list(lanes), num_unreadable=num_unreadable)


def _text(value: str | msgspec.Raw) -> str:
    return value if isinstance(value, str) else bytes(value).decode(errors="replace")


def _present(places: Array, values: list[Any]) -> tuple[Array, list[Any]]:
    """The places of the values that are there, and these."""
    num_absent = values.count(None)
    if num_absent == 0 or num_absent == len(values):
        return places[: len(values) - num_absent], values[: len(values) - num_absent]
    return places[[value is not None for value in values]], [value for value in values if value is not None]


def nanoseconds(microseconds: Sequence[float] | Sequence[Decimal]) -> Array:
    """A trace's times, exact; those that no clock shows are cut to the nearest that one can."""
    if microseconds and isinstance(microseconds[0], Decimal):
        return integers([round(time * 1000) for time in microseconds])
    times = np.clip(np.array(microseconds, np.float64), -LAST_US, LAST_US)
    whole = np.floor(times)
    return whole.astype(np.int64) * 1000 + np.rint((times - whole) * 1000).astype(np.int64)


def integers(values: Sequence[int], kind: Any = np.int64) -> Array:
    """A column of integers; what does not fit is cut to its lowest bits, as an address of 64 of them is."""
    try:
        return np.array(values, kind)
    except OverflowError:
        bits = 8 * np.dtype(kind).itemsize
        return np.array([(value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1) for value in values], kind)


def _id(value: int | str) -> int:
    """Flows are numbered; other tools name them by texts, which only have to differ."""
    if isinstance(value, int):
        return value
    try:
        return int(value, 0)
    except ValueError:
        return zlib.crc32(value.encode())
