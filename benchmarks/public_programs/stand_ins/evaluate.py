"""Stands for Hugging Face's `evaluate`: the share of right answers, without fetching a metric."""

from typing import Any


class Accuracy:
    def __init__(self) -> None:
        self._right: list[bool] = []

    def add_batch(self, predictions: Any, references: Any) -> None:
        self._right += (predictions == references).tolist()

    def compute(self) -> dict[str, float]:
        share = sum(self._right) / len(self._right)
        self._right = []
        return {"accuracy": share}


def load(*_: str) -> Accuracy:
    return Accuracy()
