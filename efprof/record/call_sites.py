"""The exact line of every Python call in a profiler window, which the trace that torch exports leaves out."""

from collections.abc import Iterator
from typing import Any

from efprof.record.sites import Sites


def python_calls(roots: list[Any], sites: Sites) -> dict[tuple[int, str], str]:
    """By start (nanoseconds) and name of each Python event: the line in the caller that made the call."""
    names: dict[tuple[str, int, str], str] = {}
    calls = {}
    for event in _walk(roots):
        caller = getattr(event.extra_fields, "caller", None)
        if caller is not None:
            calls[event.start_time_ns, event.name] = caller_site(caller, sites, names)
    return calls


def caller_site(caller: Any, sites: Sites, names: dict[tuple[str, int, str], str]) -> str:
    """The site of a caller as torch reports it; `names` remembers what was worked out."""
    key = (caller.file_name, caller.line_number, caller.function_name)
    name = names.get(key)
    if name is None:
        file = sites.file(sites.absolute(caller.file_name))
        name = names[key] = f"{file}:{caller.line_number}:{caller.function_name}"
    return name


def add_call_sites(trace: dict[str, Any], calls: dict[tuple[int, str], str]) -> None:
    """Write them into the trace as the argument `Call site`."""
    base = int(trace.get("baseTimeNanoseconds", 0))
    for event in trace["traceEvents"]:
        if event.get("cat") == "python_function":
            site = calls.get((base + round(event["ts"] * 1000), event["name"]))
            if site is not None:
                event.setdefault("args", {})["Call site"] = site


def _walk(roots: list[Any]) -> Iterator[Any]:
    todo = list(roots)
    while todo:
        event = todo.pop()
        yield event
        todo.extend(event.children)
