"""The exact line of every Python call the user's code makes in a window, which the trace that torch exports lacks."""

from decimal import Decimal
from typing import Any

import msgspec

from efprof.artifacts.trace import nanoseconds
from efprof.recorder.sites import Sites

PYTHON_CALL = b'"python_function"'

NAMELESS = "?:0:?"


class CallSites:
    """Works out the sites of callers as torch reports them, and remembers where each call was made."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._names: dict[tuple[str, int, str], tuple[str, bool]] = {}
        self._calls: dict[int, str] = {}

    def note(self, event: Any, caller: Any) -> str:
        """The site that `event` was called from; kept for the trace where it lies in the user's code."""
        name, is_user = self._site(caller)
        if is_user:
            self._calls[event.start_time_ns] = name
        return name

    def add_to(self, trace: bytes) -> bytes:
        """The exported trace with the argument `Call site` on every Python call made in the user's code.

        Only those events are taken apart: a window of plain Python code holds hundreds of thousands of others.
        """
        whole = msgspec.json.decode(trace, type=dict[str, msgspec.Raw])
        base = msgspec.json.decode(whole.get("baseTimeNanoseconds", msgspec.Raw(b"0")), type=int)
        events = msgspec.json.decode(whole["traceEvents"], type=list[msgspec.Raw])
        whole["traceEvents"] = msgspec.Raw(msgspec.json.encode([self._annotated(event, base) for event in events]))
        return msgspec.json.encode(whole)

    def _site(self, caller: Any) -> tuple[str, bool]:
        try:
            key = (caller.file_name, caller.line_number, caller.function_name)
        except UnicodeDecodeError:  # its code was freed within the window, and with it the names
            return NAMELESS, False
        known = self._names.get(key)
        if known is None:
            path = self._sites.absolute(caller.file_name)
            name = f"{self._sites.file(path)}:{caller.line_number}:{caller.function_name}"
            known = self._names[key] = (name, self._sites.is_user_file(path))
        return known

    def _annotated(self, event: msgspec.Raw, base: int) -> msgspec.Raw:
        if PYTHON_CALL not in memoryview(event).tobytes():
            return event
        start = base + nanoseconds(msgspec.json.decode(event, type=_Start).ts)
        site = self._calls.get(start)
        if site is None:
            return event
        whole = msgspec.json.decode(event, type=dict[str, msgspec.Raw])
        arguments = msgspec.json.decode(whole.get("args", msgspec.Raw(b"{}")), type=dict[str, msgspec.Raw])
        arguments["Call site"] = msgspec.Raw(msgspec.json.encode(site))
        whole["args"] = msgspec.Raw(msgspec.json.encode(arguments))
        return msgspec.Raw(msgspec.json.encode(whole))


class _Start(msgspec.Struct):
    ts: Decimal
