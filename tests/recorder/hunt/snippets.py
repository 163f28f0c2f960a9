"""Traces a few lines of code in this process, as a second run traces a program."""

import linecache
from pathlib import Path

import msgspec
import pytest
import torch

from efprof.artifacts.hunts import HuntPlan, HuntSeen, RankPlan
from efprof.recorder.hunt import traced


class OverError(BaseException):
    """In the place of the end of the process."""


def trace(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, first_hit: int = 0) -> HuntSeen:
    """What is seen of it, from its first line on to the first bad loss or gradient from that pass on, or to its end."""

    def leave(_: int) -> None:
        raise OverError

    monkeypatch.setattr(traced.os, "_exit", leave)
    monkeypatch.setenv(traced.MARK, "")  # which it sets for its children, and is gone afterwards
    results = folder / "results"
    results.mkdir()
    rank = RankPlan(first_traced=0, first_hit=first_hit, last_pass=1000, steps=[])
    plan = HuntPlan(results=str(results), root=str(folder), ranks={0: rank}, tolerance=0.0, looks_at_gradients=True)
    path = folder / "snippet.py"
    path.write_text(code)
    hunter = traced.Hunter(plan, rank, 0)
    traced.watch(hunter)
    try:
        exec(compile(code, str(path), "exec"), {"__name__": "__main__", "torch": torch})
        hunter.ended()
    except OverError:
        pass
    finally:
        hunter.leave()
        linecache.checkcache(str(path))
    (file,) = results.glob("*.json")
    return msgspec.json.decode(file.read_bytes(), type=HuntSeen)


def line_of(code: str, mark: str = "# born") -> int:
    (line,) = [number for number, text in enumerate(code.splitlines(), 1) if mark in text]
    return line
