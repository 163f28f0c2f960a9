"""Operators while a profiler window is open: functions to the profiler, and to the program what they always are."""

from typing import Any, ClassVar

import pytest
import torch

from efprof.recorder.windows.profiled_window import OPERATORS, watch_operators

EXISTING = [name for name in OPERATORS if hasattr(torch.Tensor, name)]


class Counted(torch.Tensor):
    """Looks every call up in a table, as libraries do."""

    table: ClassVar[dict[object, str]] = {getattr(torch.Tensor, name): name for name in EXISTING}
    found: ClassVar[list[str | None]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.found.append(cls.table.get(func))
        return super().__torch_function__(func, types, args, kwargs)


def use_operators() -> list[str | None]:
    Counted.found.clear()
    one, other = (torch.tensor([True, False]).as_subclass(Counted) for _ in range(2))
    ~((one & other) | (one ^ other)) == other  # noqa: B015
    return list(Counted.found)


def test_a_table_of_operators_holds_while_they_are_replaced() -> None:
    before = use_operators()
    assert {"__and__", "__or__", "__xor__", "__invert__", "__eq__"} <= set(before)
    undo = watch_operators()
    try:
        assert use_operators() == before
    finally:
        for back in undo:
            back()


@pytest.mark.parametrize("name", EXISTING)
def test_whoever_asks_for_an_operator_gets_torchs_own(name: str) -> None:
    original = getattr(torch.Tensor, name)
    undo = watch_operators()
    try:
        assert vars(torch.Tensor)[name] is not original
        assert getattr(torch.Tensor, name) is original
    finally:
        for back in undo:
            back()
    assert getattr(torch.Tensor, name) is original
