"""Modules, optimizers, schedules, scalers, loaders and profilers."""

import contextlib
import copy
import pickle
import warnings
from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tests.recorder.hooks.user_calls.calls import Calls, attempt, grid, vector


def model() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def trained(kind: Any, num_steps: int = 3, **options: Any) -> Any:
    made = model()
    optimizer = kind(made.parameters(), lr=0.1, **options)
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = made(grid()[:, :3]).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, list(made.parameters()), optimizer.state_dict()["param_groups"]


def with_closure() -> Any:
    made = model()
    optimizer = torch.optim.LBFGS(made.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = made(grid()[:, :3]).pow(2).mean()
        loss.backward()
        return loss

    return optimizer.step(closure), list(made.parameters())


def closure_raises() -> Any:
    return torch.optim.SGD(model().parameters(), lr=0.1).step(lambda: 1 / 0)


def optimizer_hooks() -> Any:
    seen: list[Any] = []
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda it, args, kwargs: seen.append(("before", type(it), len(args), kwargs)))
    optimizer.register_step_post_hook(lambda it, args, kwargs: seen.append(("after", type(it), len(args), kwargs)))
    made(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    optimizer.step(closure=None)
    return seen


def in_backward() -> Any:
    """Each parameter's optimizer steps as its gradient is there."""
    made = model()
    optimizers = {one: torch.optim.SGD([one], lr=0.1) for one in made.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for one in made.parameters():
        one.register_post_accumulate_grad_hook(step)
    made(torch.ones(1, 3)).sum().backward()
    return list(made.parameters())


class Own(torch.optim.Optimizer):
    """A program's own."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> str:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for one in group["params"]:
                    if one.grad is not None:
                        one -= group["lr"] * one.grad
        return "its own result"


def scheduled(kind: Any, *args: Any, step_args: tuple[Any, ...] = (), **options: Any) -> Any:
    optimizer = torch.optim.SGD(model().parameters(), lr=0.1)
    schedule = kind(optimizer, *args, **options)
    rates = []
    for _ in range(3):
        optimizer.step()
        schedule.step(*step_args)
        rates.append((schedule.get_last_lr(), schedule.last_epoch))
    return rates, schedule.state_dict()


def schedule_before_the_optimizer() -> Any:
    """Torch warns of it, with the line of the call."""
    optimizer = torch.optim.SGD(model().parameters(), lr=0.1)
    schedule = lr_scheduler.StepLR(optimizer, 1)
    schedule.step()


def schedule_with_an_epoch() -> Any:
    optimizer = torch.optim.SGD(model().parameters(), lr=0.1)
    schedule = lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    schedule.step(3)
    return schedule.get_last_lr()


def clipped(function: Any, **options: Any) -> Any:
    made = model()
    made(grid()[:, :3]).sum().backward()
    given = made.parameters()
    return function(given, 0.1, **options), [one.grad for one in made.parameters()]


def scaled(*, has_bad_gradient: bool = False) -> Any:
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    loss = made(torch.ones(1, 3)).sum()
    scaled_loss = scaler.scale(loss)
    scaled_loss.backward()
    if has_bad_gradient:
        made[0].weight.grad[0, 0] = float("inf")
    scaler.unscale_(optimizer)
    result = scaler.step(optimizer)
    scaler.update()
    return scaled_loss, result, scaler.get_scale(), scaler.state_dict(), list(made.parameters())


def scaler_not_enabled() -> Any:
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    it = vector()
    return scaler.scale(it) is it, scaler.get_scale(), scaler.state_dict()


def scaler_misused() -> Any:
    optimizer = torch.optim.SGD(model().parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(5))


class Failing(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return {0: 0}[index]


def loaded(data: Any, **options: Any) -> Any:
    torch.manual_seed(4)
    loader = DataLoader(data, **options)
    return [*loader], [*loader]


def loader_by_hand() -> Any:
    loader = DataLoader(TensorDataset(vector()))
    batches = iter(loader)
    made = [next(batches) for _ in range(3)], len(batches), iter(batches) is batches, type(batches)
    try:
        next(batches)
    except StopIteration as error:
        return made, error.args, next(batches, "over")
    return None


class Ordered(torch.utils.data.Sampler[int]):
    def __iter__(self) -> Any:
        yield from (2, 0, 1)

    def __len__(self) -> int:
        return 3


class Double(torch.nn.Module):
    """Has a `__call__` of its own below torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(vector())

    def forward(self, *args: Any, factor: float = 2.0) -> Any:
        return self.weight * factor, args


def lazy() -> Any:
    torch.manual_seed(1)
    made = torch.nn.LazyLinear(2)
    made(torch.ones(1, 3))
    return type(made), made.weight


def parametrized() -> Any:
    torch.manual_seed(1)
    made = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))
    return made(torch.ones(1, 2)), sorted(made.state_dict()), type(made).__name__


def in_evaluation_mode() -> Any:
    made = model()
    same = made.eval()
    return same is made, made.training, made[0].training, made.train().training


def averaged() -> Any:
    made = model()
    average = torch.optim.swa_utils.AveragedModel(made)
    average.update_parameters(made)
    return list(average.parameters()), average(torch.ones(1, 3))


def profiled() -> Any:
    """Where the recorder's window was open, it ends; names alone, since the profiler counts what it likes."""
    with torch.autograd.profiler.record_function("own"):
        return vector() + 1


def warned() -> Any:
    warnings.warn("its own", stacklevel=1)
    return vector().sum()


TRAINING: Calls = {
    **{
        f"{kind.__name__}": (lambda kind=kind: trained(kind))
        for kind in (
            torch.optim.SGD,
            torch.optim.Adam,
            torch.optim.AdamW,
            torch.optim.RMSprop,
            torch.optim.Adagrad,
            Own,
        )
    },
    "SGD with momentum, for each": lambda: trained(torch.optim.SGD, momentum=0.9, foreach=True),
    "Adam, fused": lambda: trained(torch.optim.Adam, fused=True),
    "Adam of a capturable kind": lambda: trained(torch.optim.Adam, capturable=True),
    "SGD with a rate that is a tensor": lambda: trained(torch.optim.SGD, weight_decay=0.1, nesterov=True, momentum=0.5),
    "LBFGS with a closure": with_closure,
    "a closure that raises": closure_raises,
    "an optimizer without parameters": lambda: torch.optim.SGD([], lr=0.1),
    "an optimizer's hooks": optimizer_hooks,
    "optimizers in the backward pass": in_backward,
    "an optimizer's repr": lambda: repr(torch.optim.SGD(model().parameters(), lr=0.1)),
    "a step with too many arguments": lambda: torch.optim.SGD(model().parameters(), lr=0.1).step(None, 1),
    "zero_grad": lambda: (lambda it: (it(torch.ones(1, 3)).sum().backward(), it.zero_grad(), it[0].weight.grad))(
        model()
    ),
    "StepLR": lambda: scheduled(lr_scheduler.StepLR, 1, gamma=0.5),
    "CosineAnnealingLR": lambda: scheduled(lr_scheduler.CosineAnnealingLR, 3),
    "OneCycleLR": lambda: scheduled(lr_scheduler.OneCycleLR, 1.0, total_steps=5),
    "LambdaLR": lambda: scheduled(lr_scheduler.LambdaLR, lambda epoch: 0.5**epoch)[0],
    "ReduceLROnPlateau": lambda: scheduled(lr_scheduler.ReduceLROnPlateau, step_args=(1.0,), patience=0)[0],
    "ReduceLROnPlateau without a metric": lambda: scheduled(lr_scheduler.ReduceLROnPlateau),
    "a schedule before the optimizer": schedule_before_the_optimizer,
    "a schedule with an epoch": schedule_with_an_epoch,
    "clip_grad_norm_": lambda: clipped(torch.nn.utils.clip_grad_norm_),
    "clip_grad_norm_ by another norm": lambda: clipped(torch.nn.utils.clip_grad_norm_, norm_type=float("inf")),
    "clip_grad_norm_ of a bad one": lambda: torch.nn.utils.clip_grad_norm_(
        [_with_gradient(float("nan"))], 1.0, error_if_nonfinite=True
    ),
    "clip_grad_norm_ of nothing": lambda: torch.nn.utils.clip_grad_norm_([], 1.0),
    "clip_grad_norm_ of one tensor": lambda: torch.nn.utils.clip_grad_norm_(_with_gradient(3.0), 1.0),
    "clip_grad_norm_ by keywords": lambda: torch.nn.utils.clip_grad_norm_(
        parameters=[_with_gradient(3.0)], max_norm=1.0
    ),
    "clip_grad_norm_ without arguments": lambda: torch.nn.utils.clip_grad_norm_(),
    "clip_grad_norm_ of text": lambda: torch.nn.utils.clip_grad_norm_("a", 1.0),
    "clip_grad_norm by its old name": lambda: torch.nn.utils.clip_grad_norm([_with_gradient(3.0)], 1.0),
    "clip_grad_value_": lambda: clipped(torch.nn.utils.clip_grad_value_),
    "get_total_norm": lambda: torch.nn.utils.get_total_norm([vector()]),
    "a scaler": scaled,
    "a scaler that skips": lambda: scaled(has_bad_gradient=True),
    "a scaler that is not enabled": scaler_not_enabled,
    "a scaler misused": scaler_misused,
    "a scaler by its old name": lambda: torch.cuda.amp.GradScaler(enabled=False).is_enabled(),
    "a module": lambda: model()(torch.ones(1, 3)),
    "a module with keywords": lambda: Double()(1, factor=3.0),
    "a module with a wrong keyword": lambda: Double()(wrong=3.0),
    "a module without forward": lambda: torch.nn.Module()(),
    "a module's repr": lambda: repr(model()),
    "a module's attribute that is not there": lambda: model().no_such,
    "a module in evaluation mode": in_evaluation_mode,
    "a lazy module": lazy,
    "a parametrized module": parametrized,
    "an averaged model": averaged,
    "a module's names": lambda: [name for name, _ in model().named_modules()],
    "apply": lambda: (lambda seen: (model().apply(lambda it: seen.append(type(it).__name__)), seen)[1])([]),
    "parallel": lambda: torch.nn.DataParallel(model())(torch.ones(1, 3)),
    "a loss": lambda: torch.nn.functional.cross_entropy(grid(), torch.tensor([0, 1, 2])),
    "a loss of wrong shapes": lambda: torch.nn.functional.cross_entropy(grid(), torch.tensor([0])),
    "an embedding out of range": lambda: torch.nn.Embedding(2, 2)(torch.tensor([5])),
    "attention": lambda: torch.nn.functional.scaled_dot_product_attention(*[grid().view(1, 3, 4)] * 3),
    "a recurrent module": lambda: _recurrent(),
    "own marks": profiled,
    "an own warning": warned,
    "gc": lambda: _collected(),
    "synchronize without a device": lambda: torch.cuda.synchronize(),
    "empty_cache without a device": lambda: torch.cuda.empty_cache(),
    "peak memory without a device": lambda: torch.cuda.reset_peak_memory_stats(),
    "a stream without a device": lambda: torch.cuda.Stream(),
    "an event without a device": lambda: torch.cuda.Event().synchronize(),
    "an accelerator that is not there": lambda: torch.accelerator.synchronize(),
    "a graph without a device": lambda: torch.cuda.CUDAGraph(),
    "threads": lambda: (torch.set_num_threads(torch.get_num_threads()), torch.get_num_threads()),
    "threads of a wrong type": lambda: torch.set_num_threads("a"),
    "exit": lambda: _exited(),
    "a stack of contexts": lambda: _contexts(),
}


LOADERS: Calls = {
    "deepcopy of a loader": lambda: list(copy.deepcopy(DataLoader(TensorDataset(vector())))),
    "pickle of a loader": lambda: list(pickle.loads(pickle.dumps(DataLoader(TensorDataset(vector()))))),  # noqa: S301
    "a loader": lambda: loaded(TensorDataset(torch.arange(5.0)), batch_size=2),
    "a loader in random order": lambda: loaded(TensorDataset(torch.arange(5.0)), batch_size=2, shuffle=True),
    "a loader with a sampler": lambda: loaded(TensorDataset(torch.arange(3.0)), sampler=Ordered()),
    "a loader of an iterable": lambda: loaded(Endless(), batch_size=2),
    "a loader of a list": lambda: loaded([1, 2, 3], batch_size=None),
    "a loader of 0-d tensors": lambda: loaded(list(vector()), batch_size=2),
    "a loader of dicts": lambda: loaded([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}], batch_size=2),
    "a loader that fails": lambda: loaded(Failing()),
    "a loader with wrong options": lambda: DataLoader([1], batch_size=2, batch_sampler=[[0]]),
    "a loader without arguments": lambda: DataLoader(),
    "a loader by hand": loader_by_hand,
    "a loader's length": lambda: (len(DataLoader([1, 2, 3], batch_size=2)), DataLoader(Endless()).batch_size),
    "a loader's length where there is none": lambda: len(DataLoader(Endless())),
    "a loader's attributes": lambda: sorted(vars(DataLoader([1]))),
    "an attribute of a loader set too late": lambda: setattr(DataLoader([1]), "batch_size", 3),
}
"""A loader that starts is worth some full steps, and one that feeds no backward pass ends a window."""


def _with_gradient(value: float) -> torch.nn.Parameter:
    it = torch.nn.Parameter(vector())
    it.grad = torch.full((3,), value)
    return it


def _recurrent() -> Any:
    torch.manual_seed(1)
    return torch.nn.LSTM(3, 2)(torch.ones(2, 1, 3))


def _collected() -> Any:
    import gc

    return (
        gc.isenabled(),
        gc.get_threshold(),
        gc.collect(0) >= 0,
        gc.collect(generation=0),
        attempt(lambda: gc.collect(9)),
    )


def _exited() -> Any:
    import sys

    try:
        sys.exit(3)
    except SystemExit as error:
        return error.code


def _contexts() -> Any:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        return model()(torch.ones(1, 3)).dtype
