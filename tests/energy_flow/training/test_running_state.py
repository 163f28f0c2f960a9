import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from energy_flow.training.running_state import RunningState

SKIPPED, TAKEN = torch.tensor(True), torch.tensor(False)


class _Called(TorchDispatchMode):
    """Lists the operators that reach the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def _normalised() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model(torch.randn(5, 3))
    return model


def _buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def _differing(model: nn.Module, before: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, buffer in model.named_buffers() if not torch.equal(buffer, before[name])}


def test_a_skipped_step_leaves_what_was_there_and_a_taken_one_what_it_made() -> None:
    model = _normalised()
    state, before = RunningState(model), _buffers(model)
    model(torch.full((5, 3), torch.nan))
    model(torch.randn(5, 3))
    state.settle(SKIPPED)
    assert _differing(model, before) == set()
    model = _normalised()
    state, before = RunningState(model), _buffers(model)
    model(torch.randn(5, 3))
    after = _buffers(model)
    state.settle(TAKEN)
    assert _differing(model, after) == set()
    assert _differing(model, before) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_a_later_skipped_step_goes_back_to_what_was_taken_or_loaded() -> None:
    model = _normalised()
    state = RunningState(model)
    model(torch.randn(5, 3))
    state.settle(TAKEN)
    before = _buffers(model)
    for _ in range(2):
        model(torch.full((5, 3), torch.inf))
        state.settle(SKIPPED)
    assert _differing(model, before) == set()
    model, other = _normalised(), _normalised()
    other(torch.randn(5, 3))
    state = RunningState(model)
    model.load_state_dict(other.state_dict())
    state.remember()
    model(torch.randn(5, 3))
    state.settle(SKIPPED)
    assert _differing(model, _buffers(other)) == set()
    model = _normalised()
    state, before = RunningState(model), _buffers(model)
    model[1].running_mean = model[1].running_mean + 1
    state.settle(SKIPPED)
    assert _differing(model, before) == set()


def test_a_model_without_persistent_buffers_costs_no_operation() -> None:
    model = nn.Linear(3, 2)
    model.register_buffer("scratch", torch.zeros(2), persistent=False)
    state = RunningState(model)
    model.scratch.add_(1)
    with _Called() as called:
        state.settle(SKIPPED)
    assert called.names == []
    assert model.scratch.tolist() == [1, 1]
