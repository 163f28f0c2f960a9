"""trace-<n>.json.gz: a torch.profiler window, read into columns with integer nanoseconds."""

import gzip
import zlib
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import msgspec

from efprof.artifacts.files import no_garbage_collection, numbered_files
from efprof.model import UnreadableInput


class TraceArguments(msgspec.Struct):
    """The arguments of an event that efprof reads; the others are skipped unread."""

    sequence_number: int | None = msgspec.field(name="Sequence number", default=None)
    forward_thread: int | None = msgspec.field(name="Fwd thread id", default=None)
    call_site: str | None = msgspec.field(name="Call site", default=None)
    python_id: int | None = msgspec.field(name="Python id", default=None)
    num_bytes: int | None = msgspec.field(name="Bytes", default=None)
    address: int | None = msgspec.field(name="Addr", default=None)


class _RawEvent(msgspec.Struct):
    ph: str
    name: str = ""
    cat: str = ""
    ts: Decimal = Decimal(0)
    dur: Decimal = Decimal(0)
    tid: int | str = 0
    args: TraceArguments | None = None


class _RawTrace(msgspec.Struct):
    events: list[_RawEvent] = msgspec.field(name="traceEvents")
    base_ns: int = msgspec.field(name="baseTimeNanoseconds", default=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceEvent:
    """A complete event (`duration_ns` may be 0) or an instant one; times are on the epoch's clock."""

    name: str
    category: str
    thread: int | str
    start_ns: int
    duration_ns: int
    arguments: TraceArguments

    @property
    def end_ns(self) -> int:
        """The first instant after the event."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """The events of one window in order of their start, outer before inner."""

    name: str
    events: tuple[TraceEvent, ...]


_NO_ARGUMENTS = TraceArguments()


def trace_paths(rank_folder: Path) -> list[Path]:
    """The rank's windows in the order they were recorded; raises NotRecorded where there is none."""
    return numbered_files(rank_folder, "trace", ".json.gz", "; record the run without '--windows none'.")


def read_trace(path: Path) -> Trace:
    """Read a Kineto trace, plain or gzipped, an object or a bare list; raises UnreadableInput."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        with no_garbage_collection():
            raw = _decode(content)
            events = [_typed(event, raw.base_ns) for event in raw.events if event.ph in "Xi"]
    except OSError as error:
        raise UnreadableInput(f"{path} cannot be read: {error.strerror or error}.") from None
    except (EOFError, zlib.error, msgspec.DecodeError, ValueError, ArithmeticError) as error:
        raise UnreadableInput(f"{path} is not a whole profiler trace ({error}); record the run again.") from None
    events.sort(key=lambda event: (event.start_ns, -event.duration_ns))
    return Trace(name=path.name, events=tuple(events))


def nanoseconds(microseconds: Decimal) -> int:
    """A trace's time, exact.

    torch counts from the start of the quarter year and writes thousandths of microseconds: past 2**42 us, 51 days
    later, a float no longer tells one nanosecond from the next.
    """
    return round(microseconds * 1000)


def _decode(content: bytes) -> _RawTrace:
    if content.lstrip()[:1] == b"[":
        return _RawTrace(events=msgspec.json.decode(content, type=list[_RawEvent], strict=False))
    return msgspec.json.decode(content, type=_RawTrace, strict=False)


def _typed(raw: _RawEvent, base_ns: int) -> TraceEvent:
    return TraceEvent(
        name=raw.name,
        category=raw.cat,
        thread=raw.tid,
        start_ns=base_ns + nanoseconds(raw.ts),
        duration_ns=nanoseconds(raw.dur),
        arguments=raw.args or _NO_ARGUMENTS,
    )
