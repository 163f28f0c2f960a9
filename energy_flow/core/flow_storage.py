"""The flows of a batch in one set of tensors, and how the landed ones leave it."""

from typing import NamedTuple

import torch
from torch import Tensor


class Flows(NamedTuple):
    """The flows of all texts of a batch, one row each, in any order; `text` says whose a row is.

    A batch starts as batch x flows rows, text after text, and loses rows as flows land: one flat axis lets every
    text lose as many as it will.
    """

    text: Tensor  # [rows] int64, place of the flow's text in the batch
    position: Tensor  # [rows, 3] float32, cells along x, y and z
    energy: Tensor  # [rows] float32
    hidden: Tensor  # [rows, hidden_size]
    travelling: Tensor  # [rows] bool, neither landed nor given up; the other fields of other rows mean nothing

    @property
    def num_rows(self) -> int:
        """Rows held, travelling or not; known without asking the device."""
        return self.text.shape[0]


def compact(flows: Flows, num_rows: int) -> Flows:
    """Keep `num_rows` rows: the travelling ones, then as many others, each in their order.

    The caller knows that at most `num_rows` rows travel; choosing them by a sort keeps the shapes independent of
    the values, so that the device need not be asked (a boolean index would ask it).
    """
    order = torch.argsort((~flows.travelling).to(torch.uint8), stable=True)[:num_rows]
    return Flows(*(field.index_select(0, order) for field in flows))
