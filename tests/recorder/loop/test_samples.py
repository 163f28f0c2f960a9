"""How many samples a batch holds, by the shapes that programs give it."""

import pytest
import torch

from efprof.recorder.loop.open_step import num_samples

BATCHES = {
    "a tensor": (torch.ones(4, 2), 4),
    "inputs and labels": ([torch.ones(4, 2), torch.ones(4)], 4),
    "two views and labels": ([[torch.ones(4, 2), torch.ones(4, 2)], torch.ones(4)], 4),
    "a dictionary": ({"names": ["a", "b"], "inputs": torch.ones(2, 3)}, 2),
    "views without labels": ([[torch.ones(4, 2), torch.ones(4, 2)]], 0),
    "text": (["a", "b"], 0),
}


@pytest.mark.parametrize("name", BATCHES)
def test_the_samples_of_a_batch_are_counted_where_its_shape_tells(name: str) -> None:
    batch, expected = BATCHES[name]
    assert num_samples(batch) == expected
