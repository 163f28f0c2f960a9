"""Which objects are passed over at once, since no tensor is behind them."""

from typing import Any

import numpy
import pytest
import torch

from efprof.recorder.holders import variables
from efprof.recorder.holders.variables import is_plain_data


class Record:
    """A sample of a data set."""

    def __init__(self, value: object) -> None:
        self.value = value


def is_record(kind: type[Any]) -> bool:
    return kind is Record


@pytest.mark.parametrize(
    "sample",
    [1, {"text": "a", "tokens": [1, 2, (3, None)]}, Record({"label": 1}), [Record("a")], {}, {(1, 2): b"a"}],
    ids=lambda sample: type(sample).__name__,
)
def test_samples_of_numbers_and_texts_are_plain(sample: object) -> None:
    assert is_plain_data([sample] * 3, is_record)


@pytest.mark.parametrize(
    "odd",
    [
        torch.ones(1),
        {"text": "a", "loss": torch.ones(1)},
        [[torch.ones(1)]],
        {"text": [1, (torch.ones(1),)]},
        Record(torch.ones(1)),
        Record([torch.ones(1)]),
        {"array": numpy.empty(1, dtype=object)},
        {"call": lambda: 1},
        {"kind": Record},
    ],
    ids=lambda odd: type(odd).__name__,
)
def test_one_sample_of_another_kind_among_many_is_seen(odd: object) -> None:
    plain = {"text": "a", "tokens": [1, 2]}
    assert not is_plain_data([plain] * 50 + [odd] + [plain] * 50, is_record)


def test_objects_of_which_it_is_not_known_what_they_hold_are_not_plain() -> None:
    assert not is_plain_data([Record(1)], lambda kind: False)


def test_what_lies_too_deep_or_is_too_much_is_left_to_be_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    deep: list[object] = []
    for _ in range(20):
        deep = [deep, []]
    assert not is_plain_data(deep, is_record)
    monkeypatch.setattr(variables, "MAX_OBJECTS", 10)
    assert not is_plain_data([list(range(20))], is_record)
