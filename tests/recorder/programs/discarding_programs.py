"""Training loops that throw passes away, and some that clear gradients between passes for good reasons."""

import copy
from collections.abc import Callable

import torch
from torch import nn

NUM_UPDATES = 8
NUM_BATCHES = 3

Program = Callable[[], object]


def make() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.randn(4, 3)).square().mean()


def accumulate(*, way: str = "each batch", clips: bool = False, scales: bool = False) -> None:
    """Batches are accumulated; `way` says what clears their gradients with each of them, if anything does."""
    model, optimizer = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, enabled=scales)
    for number in range(NUM_UPDATES * NUM_BATCHES):
        if way == "each batch":
            optimizer.zero_grad()
        elif way == "in place":
            model.zero_grad(set_to_none=False)
        elif way == "by hand":
            for parameter in model.parameters():
                parameter.grad = None
        scaler.scale(loss_of(model)).backward()  # backward
        if number % NUM_BATCHES == NUM_BATCHES - 1:
            if clips:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def clear_with_each() -> None:
    """Where the loop is to accumulate."""
    model, optimizer = make()
    for number in range(NUM_UPDATES * NUM_BATCHES):
        optimizer.zero_grad()  # clear
        loss_of(model).backward()
        if number % NUM_BATCHES == NUM_BATCHES - 1:
            optimizer.step()
            optimizer.zero_grad()


def average_by_hand() -> None:
    """What is cleared is lost, though the program writes to what is left."""
    model, optimizer = make()
    for _ in range(NUM_UPDATES):
        for _ in range(NUM_BATCHES):
            optimizer.zero_grad()
            loss_of(model).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= NUM_BATCHES
        optimizer.step()


def project_conflicts() -> None:
    """PCGrad: the gradient of each task is read, and then cleared."""
    model, optimizer = make()
    parameters = list(model.parameters())
    for _ in range(NUM_UPDATES):
        gradients = []
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model).backward()
            gradients.append([parameter.grad.clone() for parameter in parameters if parameter.grad is not None])
        for parameter, first, second in zip(parameters, *gradients, strict=True):
            parameter.grad = first + second - (first * second).sum().clamp(max=0) / second.square().sum() * second
        optimizer.step()


def be_aware_of_sharpness() -> None:
    """SAM, whose two passes are of one line."""
    model, optimizer = make()
    parameters = list(model.parameters())
    for _ in range(NUM_UPDATES):
        moved = list[torch.Tensor]()
        for is_second in (False, True):
            optimizer.zero_grad()
            loss_of(model).backward()
            if not is_second:
                moved = [0.05 * parameter.grad.sign() for parameter in parameters if parameter.grad is not None]
            with torch.no_grad():
                for parameter, offset in zip(parameters, moved, strict=True):
                    parameter += -offset if is_second else offset
        optimizer.step()


def estimate_information(*, in_each: bool = False) -> None:
    """Passes for the Fisher information, before every third update or, of another line, before each."""
    model, optimizer = make()

    def gradients() -> list[torch.Tensor]:
        optimizer.zero_grad()
        loss_of(model).backward()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    total = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for number in range(2 * NUM_UPDATES):
        for _ in range(4 * (in_each or number % 3 == 0)):
            total = [one + gradient.square() for one, gradient in zip(total, gradients(), strict=True)]
        if in_each:
            optimizer.zero_grad()
            loss_of(model).backward()
        else:
            gradients()
        optimizer.step()


def attack_first() -> None:
    """Passes for the gradient of the inputs: the parameters' is cleared with each."""
    model, optimizer = make()
    for _ in range(NUM_UPDATES):
        inputs = torch.randn(4, 3, requires_grad=True)
        for _ in range(3):
            model.zero_grad()
            model(inputs).square().mean().backward()
        model.zero_grad()
        model(inputs.detach()).square().mean().backward()
        optimizer.step()


def with_closure(kind: str = "SGD") -> None:
    """As Lightning has it: the step calls what clears, and makes, its gradients."""
    model, optimizer = make()
    if kind == "LBFGS":
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(NUM_UPDATES):
        optimizer.step(closure)  # type: ignore[arg-type]


def try_each_loss() -> None:
    """The closure is called twice by an optimizer that keeps the better of two gradients."""

    class Twice(torch.optim.SGD):
        def step(self, closure: Callable[[], torch.Tensor]) -> None:  # type: ignore[override]
            closure()
            closure()
            super().step()

    model, _ = make()
    optimizer = Twice(model.parameters(), lr=0.01)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(NUM_UPDATES):
        optimizer.step(closure)


def adversaries() -> None:
    """A generator and a critic, whose passes are of one line."""
    generator, critic = nn.Linear(2, 3), make()[0]
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (critic, generator)]
    for _ in range(NUM_UPDATES):
        for optimizer in optimizers:
            for each in optimizers:
                each.zero_grad()
            critic(generator(torch.randn(4, 2))).mean().backward()
            optimizer.step()


def skip_bad_batches() -> None:
    """Now and then a batch is left out."""
    model, optimizer = make()
    for number in range(2 * NUM_UPDATES):
        optimizer.zero_grad()
        loss_of(model).backward()
        if number % 3:
            optimizer.step()


def average_weights() -> None:
    """Copies of the model each make a pass."""
    model, optimizer = make()
    for _ in range(NUM_UPDATES):
        for one in (copy.deepcopy(model), copy.deepcopy(model), model):
            one.zero_grad()
            loss_of(one).backward()
        optimizer.step()
