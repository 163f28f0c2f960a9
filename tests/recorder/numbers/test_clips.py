"""The norm that gradients are clipped by is a step's where it is of all of them, and of nothing else."""

import math
from pathlib import Path

import pytest
import torch

from tests.recorder.numbers.test_numbers import two_weights
from tests.recorder.recording import record_here
from tests.recorder.training import make_loader, make_weight


def test_the_norm_of_one_optimizer_s_clipped_gradients_is_not_that_of_a_step_of_two(tmp_path: Path) -> None:
    def train() -> None:
        weights, optimizers = two_weights()
        for _ in make_loader(4):
            for weight, factor, optimizer in zip(weights, (3.0, 4.0), optimizers, strict=True):
                optimizer.zero_grad()
                (weight * factor).sum().backward()
                if factor == 3.0:
                    torch.nn.utils.clip_grad_norm_([weight], 1.0)
                optimizer.step()

    recorded = record_here(tmp_path, train)
    assert [step.gradient_norm for step in recorded.steps] == [5.0] * 4


@pytest.mark.parametrize("num_optimizers", [1, 2])
def test_the_norm_of_one_module_is_not_taken_for_that_of_two_that_are_clipped_by_themselves(
    num_optimizers: int, tmp_path: Path
) -> None:
    def train() -> None:
        weights, optimizers = two_weights()
        if num_optimizers == 1:
            optimizers = [torch.optim.SGD(weights, lr=0.0)]
        for _ in make_loader(4):
            torch.autograd.backward([(weights[0] * 30.0).sum(), (weights[1] * 40.0).sum()])
            for weight in weights:
                torch.nn.utils.clip_grad_norm_([weight], 5.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    recorded = record_here(tmp_path, train)
    assert [step.gradient_norm for step in recorded.steps] == [pytest.approx(math.sqrt(50.0))] * 4


def test_gradients_that_are_clipped_after_each_backward_pass_have_the_last_norm(tmp_path: Path) -> None:
    def train() -> None:
        weight, optimizer = make_weight()
        for _ in make_loader(4):
            for factor in (3.0, 6.0):
                (weight * factor).sum().backward()
                torch.nn.utils.clip_grad_norm_([weight], math.inf)  # which only asks for it
                torch.nn.utils.clip_grad_norm_([weight], 2.0)
            optimizer.step()
            optimizer.zero_grad()

    assert [step.gradient_norm for step in record_here(tmp_path, train).steps] == [pytest.approx(8.0)] * 4


def test_a_norm_stands_beside_an_optimizer_of_sparse_gradients_which_has_none(tmp_path: Path) -> None:
    def train() -> None:
        embedding, weight = torch.nn.Embedding(5, 2, sparse=True), torch.ones(1, requires_grad=True)
        optimizers = [torch.optim.SparseAdam(embedding.parameters()), torch.optim.SGD([weight], lr=0.0)]
        for inputs in make_loader(4):
            (embedding(torch.tensor([1])).sum() * 0.0 + weight.sum() * 2.0 * len(inputs)).backward()
            torch.nn.utils.clip_grad_norm_([weight], 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    assert None not in [step.gradient_norm for step in record_here(tmp_path, train).steps]
