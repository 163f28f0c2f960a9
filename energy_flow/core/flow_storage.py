"""The flows of a batch in one set of tensors, and how those that have ended their way leave it.

A flow step makes new tensors and writes into none. Under autograd it must: what backward needs of a step may not be
written over, and steps that write into slices of one block do just that in autograd's eyes. Without autograd, steps
that write into one pre-allocated set took from 3 % less to 6 % longer on the CPU (debug, cpu_demo and experiment
sizes), no faster beyond noise: torch's allocators already hand out the same memory again.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Ended(NamedTuple):
    """Where flows ended: landed, or given up on the way. Flows that still travel may stand among them."""

    text: Tensor  # [rows] int64, place of the flow's text in the batch
    position: Tensor  # [rows, 3] float32, cells along x, y and z
    energy: Tensor  # [rows] float32


class Flows(NamedTuple):
    """The flows of all texts of a batch, one row each, in any order; `text` says whose a row is.

    A batch starts as batch x flows rows, text after text, and loses rows as flows land: one flat axis lets every
    text lose as many as it will.
    """

    text: Tensor  # [rows] int64, place of the flow's text in the batch
    position: Tensor  # [rows, 3] float32, cells along x, y and z
    energy: Tensor  # [rows] float32
    hidden: Tensor  # [rows, hidden_size]; of rows that no longer travel it means nothing
    travelling: Tensor  # [rows] bool, neither landed nor given up; other rows stay where they are

    @property
    def num_rows(self) -> int:
        """Rows held, travelling or not; known without asking the device."""
        return self.text.shape[0]

    def ended(self) -> Ended:
        """All rows, without what only a travelling flow needs."""
        return Ended(self.text, self.position, self.energy)


def split(flows: Flows, num_rows: int) -> tuple[Flows, Ended]:
    """Keep `num_rows` rows, the travelling ones, then as many others, each in their order; the rest has ended.

    The caller knows that at most `num_rows` rows travel; choosing them by a sort keeps the shapes independent of
    the values, so that the device need not be asked (a boolean index would ask it).
    """
    order = torch.argsort((~flows.travelling).to(torch.uint8), stable=True)
    kept, rest = order[:num_rows], order[num_rows:]
    return (
        Flows(*(field.index_select(0, kept) for field in flows)),
        Ended(*(field.index_select(0, rest) for field in flows.ended())),
    )
