"""How many elements a step was given: by its modules' inputs, else by its batches."""

from pathlib import Path

import pytest
import torch

from tests.recorder.recording import record_here
from tests.recorder.training import make_loader, make_training, make_weight, train


class ByName(torch.nn.Module):
    """Called by name, of which hooks on modules see nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs)


def test_what_the_outermost_module_is_given_counts_and_not_its_layers_inputs(tmp_path: Path) -> None:
    def train_longer() -> None:
        model, optimizer = make_training()
        for length in (2, 4, 8):
            optimizer.zero_grad()
            model(torch.randn(length, 3)).sum().backward()
            optimizer.step()

    assert [step.num_elements for step in record_here(tmp_path, train_longer).steps] == [6, 12, 24]


def test_where_modules_are_called_by_name_the_batch_counts(tmp_path: Path) -> None:
    def train_by_name() -> None:
        model = ByName()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for inputs, _ in make_loader(3):
            optimizer.zero_grad()
            model(inputs=inputs).sum().backward()
            optimizer.step()

    steps = record_here(tmp_path, train_by_name).steps
    assert [step.num_elements for step in steps] == [4 * (3 + 1)] * 3


def test_lists_and_mappings_are_looked_into_and_other_things_are_nothing(tmp_path: Path) -> None:
    class Many(torch.nn.Module):
        def forward(self, *given: object) -> None: ...

    def train_on_many() -> None:
        weight, optimizer = make_weight()
        many = Many()
        many([torch.zeros(2), "text", torch.zeros(3)], {"words": torch.zeros(4)}, 7, None, [[torch.zeros(9)]])
        weight.sum().backward()
        optimizer.step()

    assert [step.num_elements for step in record_here(tmp_path, train_on_many).steps] == [9]


def test_a_loader_s_steps_have_the_elements_of_the_inputs_alone(tmp_path: Path) -> None:
    def train_from_loader() -> None:
        model, optimizer = make_training()
        train(model, make_loader(2), optimizer)

    assert [step.num_elements for step in record_here(tmp_path, train_from_loader).steps] == [12, 12]


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
def test_what_is_traced_gets_no_node_of_ours(tmp_path: Path) -> None:
    def trace_and_train() -> None:
        model, optimizer = make_training()
        traced = torch.jit.trace(model, torch.randn(2, 3))
        assert "numel" not in str(traced.inlined_graph)
        traced(torch.randn(2, 3)).sum().backward()
        optimizer.step()

    assert len(record_here(tmp_path, trace_and_train).steps) == 1
