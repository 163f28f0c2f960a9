"""What to do about an object of a library that a line of the program gives more and more: hooks, logs, caches."""

from typing import Final

from efprof.model import Fix

ADVICE: Final = (
    (
        ("lru_cache", "cache_info"),
        "Give it a limit (`@lru_cache(maxsize=N)`), or call it with arguments that come again: each new one, a tensor "
        "above all, is kept with its result.",
    ),
    (("ContextVar",), "Reset `{path}` at the end of the step by the token that `set` gave."),
    (
        ("Handler", "Logger", "records"),
        "Log a number (`.item()`) or a finished text (an f-string) instead of the tensor, or give the handler that "
        "keeps its records a limit.",
    ),
    (
        ("_hooks",),
        "Register the hook once, before the loop, or keep its handle and call `handle.remove()` at the end of the "
        "step.",
    ),
    (
        ("_buffers",),
        "Register the buffer once, and write into it (`self.name.copy_(value)`), or keep the value elsewhere.",
    ),
    (("figure(", "subplots("), "Close each figure (`plt.close(figure)`) once it is saved."),
)
"""By a part of the holder's path or type, or of the line that feeds it."""
OTHERWISE: Final = (
    "Take this call out of the loop, and use again what it was given once; where each step needs its own, make what "
    "has `{path}` anew as well."
)


def end_feeding(path: str, kind: str, line: str) -> Fix:
    """By what it is, and what the line that feeds it says."""
    told = f"{path} {kind} {line}"
    advice = next((advice for parts, advice in ADVICE if any(part in told for part in parts)), OTHERWISE)
    return Fix(summary=advice.format(path=path), applicability="manual")
