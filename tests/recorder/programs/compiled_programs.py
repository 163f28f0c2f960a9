"""Training programs that compile in different ways; run as a script, it says what the compiler did in each."""

import gc
import json
from collections.abc import Callable

import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.functional import gelu, mse_loss
from torch.utils.data import DataLoader, TensorDataset

NUM_STEPS = 5
WIDTH = 16

Call = Callable[[torch.Tensor], torch.Tensor]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.dropout(gelu(self.linear(inputs)))


class Reading(Block):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scale = 2.0 if inputs.mean().item() > 1e9 else 1.0
        gc.collect(0)
        return super().forward(inputs * scale)


def make_model(kind: type[Block] = Block) -> nn.Sequential:
    return nn.Sequential(kind(), kind(), nn.Linear(WIDTH, 1))


def make_loader() -> DataLoader[tuple[torch.Tensor, ...]]:
    inputs = torch.randn(NUM_STEPS * WIDTH, WIDTH)
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=WIDTH)


def train(model: nn.Module, call: Call, *, is_evaluated: bool = False) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for inputs, targets in make_loader():
        optimizer.zero_grad()
        loss = mse_loss(call(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if is_evaluated:
            model.eval()
            with torch.no_grad():
                losses.append(mse_loss(call(inputs), targets).item())
            model.train()
    return losses


def whole_model() -> list[float]:
    model = make_model()
    return train(model, torch.compile(model, backend="aot_eager"))


def submodule() -> list[float]:
    model = make_model()
    model[1] = torch.compile(model[1], backend="eager", fullgraph=True)
    return train(model, model)


def reading() -> list[float]:
    model = make_model(Reading)
    return train(model, torch.compile(model, backend="eager"))


def evaluation() -> list[float]:
    model = make_model()
    return train(model, torch.compile(model, backend="eager"), is_evaluated=True)


def trained_before() -> list[float]:
    model = make_model()
    return train(model, model) + train(model, torch.compile(model, backend="eager"))


def forces() -> list[float]:
    model = make_model()

    @torch.compile(backend="eager")
    def call(inputs: torch.Tensor) -> torch.Tensor:
        inputs = inputs.detach().requires_grad_()
        energy = model(inputs)
        (force,) = torch.autograd.grad(energy.sum(), inputs, create_graph=True)
        return energy + force.sum(1, keepdim=True)

    return train(model, call)


def update() -> list[float]:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    @torch.compile(backend="eager")
    def clip_and_step() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    losses = []
    for inputs, targets in make_loader():
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), targets)
        loss.backward()
        clip_and_step()
        losses.append(loss.item())
    return losses


def whole_step() -> list[float]:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    @torch.compile(backend="eager")
    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    return [step(inputs, targets).item() for inputs, targets in make_loader()]


PROGRAMS = (
    whole_model, submodule, reading, evaluation, trained_before, forces, update, whole_step,
)  # fmt: skip


def what_was_compiled() -> dict[str, object]:
    kept = ("frames", "stats", "graph_break", "unimplemented", "recompiles")
    return {name: dict(counters[name]) for name in kept if counters[name]}


def main() -> None:
    said = {}
    for program in PROGRAMS:
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        losses = program()
        said[program.__name__] = {"losses": losses, "compiled": what_was_compiled()}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
