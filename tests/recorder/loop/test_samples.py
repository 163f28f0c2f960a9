"""How many samples a batch holds, by the shapes that programs give it."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from efprof.recorder.loop.open_step import num_samples
from tests.recorder.recording import record_here


@dataclass
class Molecules:
    name: str
    positions: torch.Tensor


BOXES = {"boxes": torch.ones(7, 4)}
PICTURE = torch.ones(3, 5, 6)

BATCHES = {
    "a tensor": (torch.ones(4, 2), 4),
    "inputs and labels": ([torch.ones(4, 2), torch.ones(4)], 4),
    "two views and labels": ([[torch.ones(4, 2), torch.ones(4, 2)], torch.ones(4)], 4),
    "a dictionary": ({"names": ["a", "b"], "inputs": torch.ones(2, 3)}, 2),
    "a dataclass": (Molecules("four", torch.ones(4, 3)), 4),
    "pictures and what is on them": (((PICTURE,) * 5, (BOXES,) * 5), 5),
    "the same, pinned": ([[PICTURE] * 5, [BOXES] * 5], 5),
    "views without labels": ([[torch.ones(4, 2), torch.ones(4, 2)]], 0),
    "text": (["a", "b"], 0),
}


@pytest.mark.parametrize("name", BATCHES)
def test_the_samples_of_a_batch_are_counted_where_its_shape_tells(name: str) -> None:
    batch, expected = BATCHES[name]
    assert num_samples(batch) == expected


def test_pictures_of_different_sizes_are_counted(tmp_path: Path) -> None:
    data = [(torch.ones(3, 4 + number % 3, 5), {"label": torch.ones(1)}) for number in range(10)]

    def train() -> None:
        model = torch.nn.Conv2d(3, 1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for pictures, targets in DataLoader(data, batch_size=4, collate_fn=lambda batch: tuple(zip(*batch))):  # noqa: B905
            errors = [
                (model(picture).mean() - target["label"]).square()
                for picture, target in zip(pictures, targets, strict=True)
            ]
            optimizer.zero_grad()
            torch.cat(errors).mean().backward()
            optimizer.step()

    assert [step.samples for step in record_here(tmp_path, train).steps] == [4, 4, 2]
