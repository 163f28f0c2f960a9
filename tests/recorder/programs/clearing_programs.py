"""Training loops that clear their gradients in every way there is, and some that do not."""

import time
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import nn

Program = Callable[[], object]
LENGTH = 16


def model_of(*, width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1))


def loss_of(model: nn.Module) -> torch.Tensor:
    return model(torch.randn(4, 3)).square().mean()


def clear(tensors: Iterable[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.grad = None


def in_place(model: nn.Module) -> None:
    model.zero_grad(set_to_none=False)


def train(*, before: str = "", after: str = "", **settings: object) -> None:
    """A plain loop, which clears before backward or after the step, in the way named."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, **settings)  # type: ignore[arg-type]
    ways: dict[str, Callable[[], object]] = {
        "": lambda: None,
        "optimizer": optimizer.zero_grad,
        "model": model.zero_grad,
        "in place": partial(in_place, model),
        "by hand": lambda: clear(model.parameters()),
        "data": lambda: [one.grad.data.zero_() for one in model.parameters() if one.grad is not None],
        "zero_": lambda: [one.grad.zero_() for one in model.parameters() if one.grad is not None],
        "decay": lambda: [one.grad.mul_(0.9) for one in model.parameters() if one.grad is not None],
        "one of them": lambda: clear([model[2].bias]),
    }
    for _ in range(LENGTH):
        loss = loss_of(model)
        ways[before]()
        loss.backward()
        optimizer.step()
        ways[after]()


def accumulate(*, clears: bool, num_batches: int = 3) -> None:
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(1, LENGTH * num_batches + 1):
        (loss_of(model) / num_batches).backward()
        if number % num_batches == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if clears:
                optimizer.zero_grad()


def scaled(*, clears: bool, num_overflows: int = 0) -> None:
    model, scaler = model_of(), torch.amp.GradScaler("cpu", init_scale=16.0)
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(LENGTH):
        factor = float("inf") if number < num_overflows else 1.0
        scaler.scale(loss_of(model) * factor).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if clears:
            optimizer.zero_grad()


def adversaries(*, clears_critic: bool, set_to_none: bool = True, freezes: bool = False) -> None:
    """The generator's pass adds to the critic's gradients too, unless the critic is frozen meanwhile."""
    generator, critic = nn.Linear(2, 3), model_of()
    of_generator = torch.optim.Adam(generator.parameters())
    of_critic = torch.optim.Adam(critic.parameters())
    for _ in range(LENGTH):
        made = generator(torch.randn(4, 2))
        if clears_critic:
            of_critic.zero_grad(set_to_none=set_to_none)
        (critic(made.detach()).mean() - critic(torch.randn(4, 3)).mean()).backward()
        of_critic.step()
        critic.requires_grad_(not freezes)
        of_generator.zero_grad(set_to_none=set_to_none)
        (-critic(made).mean()).backward()
        of_generator.step()
        critic.requires_grad_(True)


def with_closure(*, clears: bool) -> None:
    model = model_of()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure() -> torch.Tensor:
        if clears:
            optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(LENGTH):
        optimizer.step(closure)  # type: ignore[arg-type]


def master_weights() -> None:
    """The optimizer has copies of the parameters, into whose gradients the model's are written."""
    model = model_of()
    masters = [one.detach().clone().requires_grad_() for one in model.parameters()]
    for master in masters:
        master.grad = torch.zeros_like(master)
    optimizer = torch.optim.SGD(masters, lr=0.01)
    for _ in range(LENGTH):
        model.zero_grad()
        loss_of(model).backward()
        for master, one in zip(masters, model.parameters(), strict=True):
            assert master.grad is not None
            assert one.grad is not None
            master.grad.copy_(one.grad)
        optimizer.step()


def attack_first(*, freezes: bool) -> None:
    """A first pass is for the gradient of the inputs only; what it left is cleared before the second."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(LENGTH):
        inputs = torch.randn(4, 3, requires_grad=True)
        model.requires_grad_(not freezes)
        model(inputs).square().mean().backward()
        model.requires_grad_(True)
        assert inputs.grad is not None
        in_place(model)
        model(inputs.detach() + inputs.grad).square().mean().backward()
        optimizer.step()


def of_ranks(*, clears: bool) -> None:
    """A world of one process, in which the mean over the ranks is written back into each gradient."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(model_of())
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(LENGTH):
            if clears:
                optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
    finally:
        time.sleep(0.5)  # gloo's threads let go of the last tensors, for which they need the lock that the end holds
        torch.distributed.destroy_process_group()


def step_in_hooks() -> None:
    model = model_of()
    optimizers = {one: torch.optim.SGD([one], lr=0.01) for one in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for one in model.parameters():
        one.register_post_accumulate_grad_hook(update)
    for _ in range(LENGTH):
        loss_of(model).backward()


def sparse_rows() -> None:
    table = nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    for _ in range(LENGTH):
        optimizer.zero_grad()
        table(torch.tensor([1, 2])).sum().backward()
        optimizer.step()


def clear_every_ninth_step() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(LENGTH):
        if number % 9 == 0:
            optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def take_branches(
    *, clears: str = "first", set_to_none: bool = True, is_after: bool = False, every: int = 2, length: int = LENGTH
) -> None:
    """Two losses by turns, each with its own pass; `clears` names the branches that clear their gradients."""
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(length):
        branch = "first" if number % every else "second"
        if branch in clears and not is_after:
            optimizer.zero_grad(set_to_none)
        if branch == "first":
            loss_of(model).backward()
        else:
            (-loss_of(model)).backward()  # second
        optimizer.step()
        if branch in clears and is_after:
            optimizer.zero_grad(set_to_none)


def branch_and_clear_every(distance: int) -> None:
    """Two branches, whose gradients are summed over so many steps, whichever these are."""
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(LENGTH + 4):
        if number % distance == 0:
            optimizer.zero_grad()
        if number % 2:
            loss_of(model).backward()
        else:
            (-loss_of(model)).backward()
        optimizer.step()


def share_a_scaler() -> None:
    """Two optimizers, which step one after the other, of one scaler; now and then a batch is left out."""
    model, scaler = model_of(), torch.amp.GradScaler("cpu", init_scale=16.0)
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in (model[0], model[2])]
    for number in range(LENGTH):
        scaler.scale(loss_of(model)).backward()
        if number % 5 == 4:
            model.zero_grad()
            continue
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad()


def pass_twice(*, moves: bool = False, adds: bool = False) -> None:
    """Two passes for each update, of which the first is cleared once it was read: as in SAM, PCGrad and for Fisher."""
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(LENGTH):
        loss_of(model).backward()
        first = [one.grad.clone() for one in model.parameters() if one.grad is not None]
        optimizer.zero_grad()
        for one, gradient in zip(model.parameters(), first, strict=True):
            one.data += 0.01 * moves * gradient
        (-loss_of(model)).backward()
        for one, gradient in zip(model.parameters(), first, strict=True):
            one.data -= 0.01 * moves * gradient
            if adds and one.grad is not None:
                one.grad = one.grad + gradient
        optimizer.step()
        optimizer.zero_grad()


HEALTHY: dict[str, Program] = {
    **{f"before backward: {way}": partial(train, before=way) for way in ("optimizer", "model", "by hand", "in place")},
    **{f"after the step: {way}": partial(train, after=way) for way in ("optimizer", "model", "by hand", "zero_")},
    "after the step: decay": partial(train, after="decay"),
    "after the step: one of them": partial(train, after="one of them"),
    "nesterov": partial(train, before="optimizer", momentum=0.9, nesterov=True, foreach=True),
    "fused": partial(train, before="in place", momentum=0.9, fused=True),
    "before backward: data": partial(train, before="data"),
    "after the step: data": partial(train, after="data"),
    "accumulation": partial(accumulate, clears=True),
    "scaler": partial(scaled, clears=True),
    "scaler that skips": partial(scaled, clears=True, num_overflows=4),
    "adversaries": partial(adversaries, clears_critic=True),
    "adversaries, in place": partial(adversaries, clears_critic=True, set_to_none=False),
    "adversaries, frozen": partial(adversaries, clears_critic=True, set_to_none=False, freezes=True),
    "closure": partial(with_closure, clears=True),
    "master weights": master_weights,
    "attack": partial(attack_first, freezes=False),
    "attack on a frozen model": partial(attack_first, freezes=True),
    "ranks": partial(of_ranks, clears=True),
    "hooks": step_in_hooks,
    "sparse": sparse_rows,
    "every ninth step": clear_every_ninth_step,
    "two branches": partial(take_branches, clears="first and second"),
    "two branches, after the step": partial(take_branches, clears="first and second", is_after=True),
    "two branches, every ninth step": partial(branch_and_clear_every, 9),
    "two branches, every third step": partial(branch_and_clear_every, 3),
    "a branch that is hardly ever taken": partial(take_branches, every=6),
    "two optimizers of one scaler": share_a_scaler,
    "sharpness": partial(pass_twice, moves=True),
    "conflicting gradients": partial(pass_twice, adds=True),
    "information": pass_twice,
}

FAULTY: dict[str, tuple[Program, str]] = {
    "plain": (train, "SGD"),
    "momentum": (partial(train, momentum=0.9, weight_decay=0.1, foreach=True), "SGD"),
    "fused": (partial(train, momentum=0.9, nesterov=True, fused=True), "SGD"),
    "accumulation, clipped": (partial(accumulate, clears=False), "Adam"),
    "scaler, clipped": (partial(scaled, clears=False), "Adam"),
    "adversaries": (partial(adversaries, clears_critic=False), "Adam"),
    "adversaries, frozen": (partial(adversaries, clears_critic=False, freezes=True), "Adam"),
    "closure": (partial(with_closure, clears=False), "LBFGS"),
    "ranks": (partial(of_ranks, clears=False), "Adam"),
}

BRANCHES: dict[str, Program] = {
    "by turns": take_branches,
    "in place": partial(take_branches, set_to_none=False),
    "one of three": partial(take_branches, every=3),
    "long": partial(take_branches, length=40),
}
"""The second branch never clears what the first one has left."""
