"""machine: a table names the command that made it."""

import sys
from types import SimpleNamespace

import pytest

from benchmarks.machine import machine_line


def test_a_table_names_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(__spec__=SimpleNamespace(name="benchmarks.trainer"))
    monkeypatch.setitem(sys.modules, "__main__", module)  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "argv", ["trainer.py", "--rounds", "3"])
    assert machine_line().endswith(" `python -m benchmarks.trainer --rounds 3`")
