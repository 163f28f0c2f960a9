"""Autograd: passes, hooks, functions, transformations, checkpoints."""

import warnings
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from tests.recorder.hooks.user_calls.calls import Calls, attempt, grid, scalar, vector


def loss_of(weight: torch.Tensor) -> torch.Tensor:
    return (weight**2).sum() + weight[0] * 3


def passed(**how: Any) -> Any:
    weight = vector(requires_grad=True)
    loss_of(weight).backward(**how)
    return weight.grad


def twice(**how: Any) -> Any:
    weight = vector(requires_grad=True)
    loss = loss_of(weight)
    loss.backward(**how)
    loss.backward()
    return weight.grad


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, given: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(given)
        return given * 2

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        (given,) = context.saved_tensors
        return gradient * 2 + given * 0


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, given: torch.Tensor) -> torch.Tensor:
        return given.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise LookupError("in backward")


def of_a_function() -> Any:
    weight = vector(requires_grad=True)
    made = Doubled.apply(weight)
    made.sum().backward()
    return made.grad_fn.name(), type(made.grad_fn), weight.grad


def hooked() -> Any:
    seen: list[Any] = []
    weight = vector(requires_grad=True)
    middle = weight * 2
    first = weight.register_hook(lambda gradient: seen.append(("leaf", gradient)))
    middle.register_hook(lambda gradient: gradient * 10)
    middle.retain_grad()
    weight.register_post_accumulate_grad_hook(lambda it: seen.append(("accumulated", it.grad.clone())))
    middle.grad_fn.register_hook(lambda inputs, outputs: seen.append(("node", inputs, outputs)))
    middle.grad_fn.register_prehook(lambda outputs: seen.append(("before node", outputs)))
    middle.sum().backward()
    first.remove()
    return seen, middle.grad, weight.grad, len(weight._backward_hooks)


def accumulator() -> Any:
    weight = vector(requires_grad=True)
    seen: list[Any] = []
    node = weight.expand_as(weight).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: seen.append("run"))
    loss_of(weight).backward()
    loss_of(weight).backward()
    return seen, type(node).__name__, torch.autograd.graph.get_gradient_edge(weight).node is node


def hook_raises() -> Any:
    weight = vector(requires_grad=True)
    weight.register_hook(lambda _: 1 / 0)
    loss_of(weight).backward()


def saved_tensor_hooks() -> Any:
    packed: list[Any] = []

    def pack(it: torch.Tensor) -> int:
        packed.append(it)
        return len(packed) - 1

    weight = vector(requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda place: packed[place]):
        loss = loss_of(weight)
    loss.backward()
    return len(packed), weight.grad


def saved_on_cpu() -> Any:
    weight = vector(requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        loss = loss_of(weight)
    loss.backward()
    return weight.grad


def all_gradients_hooked() -> Any:
    seen: list[Any] = []
    one, other = vector(requires_grad=True), vector(requires_grad=True)
    torch.autograd.graph.register_multi_grad_hook([one, other], seen.append)
    (one * other).sum().backward()
    return seen


def checkpointed(*, use_reentrant: bool) -> Any:
    weight = vector(requires_grad=True)
    torch.manual_seed(2)
    made = checkpoint(lambda it: torch.dropout(it, 0.5, True) * it, weight, use_reentrant=use_reentrant)
    made.sum().backward()
    return made, weight.grad


def checkpoint_without_a_gradient() -> Any:
    return checkpoint(lambda it: it * 2, vector(), use_reentrant=True)


def reentrant() -> Any:
    class Within(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, given: torch.Tensor) -> torch.Tensor:
            return given.clone()

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                inner = vector(requires_grad=True)
                loss_of(inner).backward()
            return gradient + inner.grad

    weight = vector(requires_grad=True)
    Within.apply(weight).sum().backward()
    return weight.grad


def anomaly() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.set_detect_anomaly(True):
            weight = torch.zeros(1, requires_grad=True)
            torch.sqrt(weight * 0).sum().mul(0).backward()
    return weight.grad


def module_hooks() -> Any:
    seen: list[Any] = []
    torch.manual_seed(1)
    made = torch.nn.Linear(3, 2)
    made.register_forward_pre_hook(lambda _, given: seen.append(("before", given)))
    made.register_forward_hook(lambda _, given, result: seen.append(("after", result)) or result * 2)
    made.register_forward_hook(lambda *_: seen.append("always"), always_call=True)
    made.register_full_backward_pre_hook(lambda _, gradient: seen.append(("backward before", gradient)))
    made.register_full_backward_hook(lambda _, into, outof: seen.append(("backward", into, outof)))
    made.register_state_dict_pre_hook(lambda *_: seen.append("state"))
    result = made(torch.ones(1, 3, requires_grad=True))
    result.sum().backward()
    made.state_dict()
    return seen, result


def global_hooks() -> Any:
    seen: list[Any] = []
    module = torch.nn.modules.module
    handles = [
        module.register_module_forward_pre_hook(lambda it, _: seen.append(("before", type(it).__name__))),
        module.register_module_forward_hook(lambda it, *_: seen.append(("after", type(it).__name__))),
        module.register_module_full_backward_hook(lambda it, *_: seen.append(("backward", type(it).__name__))),
    ]
    try:
        torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())(torch.ones(1, 3)).sum().backward()
    finally:
        for handle in handles:
            handle.remove()
    return seen


def forward_raises() -> Any:
    """And hooks that are called always see it."""
    seen: list[Any] = []
    made = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(3, 2))
    made.register_forward_hook(lambda *_: seen.append("always"), always_call=True)
    try:
        made(torch.ones(1, 3))
    except RuntimeError as error:
        return seen, str(error), error.__context__, error.__cause__
    return None


def hook_of_a_module_raises() -> Any:
    made = torch.nn.Linear(3, 2)
    made.register_forward_pre_hook(lambda *_: 1 / 0)
    return made(torch.ones(1, 3))


def functional() -> Any:
    torch.manual_seed(1)
    made = torch.nn.Linear(3, 1)
    values = {name: it.detach() * 2 for name, it in made.named_parameters()}
    return torch.func.functional_call(made, values, (torch.ones(2, 3),))


def per_sample() -> Any:
    torch.manual_seed(1)
    made = torch.nn.Linear(3, 1)
    values = {name: it.detach() for name, it in made.named_parameters()}

    def loss(values: Any, sample: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(made, values, (sample,)).sum()

    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(values, grid()[:, :3])


def grad_within_transformation() -> Any:
    def inner(it: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(loss_of(it.detach().requires_grad_()), [it])

    return torch.func.vmap(inner)(grid())


def graph_task() -> Any:
    ids: list[int] = []
    weight = vector(requires_grad=True)
    weight.register_hook(lambda _: ids.append(torch._C._current_graph_task_id() >= 0))
    loss_of(weight).backward()
    return ids, torch._C._current_graph_task_id()


def callback_at_the_end() -> Any:
    seen: list[str] = []
    weight = vector(requires_grad=True)

    def hook(_: Any) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: seen.append("end"))

    weight.register_hook(hook)
    loss_of(weight).backward()
    return seen


def with_graph() -> Any:
    weight = vector(requires_grad=True)
    (first,) = torch.autograd.grad(loss_of(weight), weight, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), weight)
    return first, first.grad_fn, second


def in_inference_mode() -> Any:
    with torch.inference_mode():
        it = vector()
        it += 1
    return it.is_inference(), attempt(it.requires_grad_)


def gradients_assigned() -> Any:
    weight = vector(requires_grad=True)
    weight.grad = torch.ones(3)
    loss_of(weight).backward()
    kept, weight.grad = weight.grad, None
    return kept, weight.grad


GRADIENTS: Calls = {
    "backward": passed,
    "backward with a gradient": lambda: passed(gradient=scalar(2.0)),
    "backward with a gradient of a wrong shape": lambda: passed(gradient=vector()),
    "backward that keeps the graph": lambda: twice(retain_graph=True),
    "backward with a graph of its own": lambda: passed(inputs=[]),
    "backward a second time": twice,
    "backward of several": lambda: vector(requires_grad=True).backward(),
    "backward without a graph": lambda: vector().sum().backward(),
    "backward with a wrong keyword": lambda: passed(no_such=1),
    "backward for inputs": lambda: (lambda it: (it.sum().backward(inputs=[it]), it.grad))(vector(requires_grad=True)),
    "backward for no leaf": lambda: (lambda it: (it * 2).sum().backward(inputs=[it * 3]))(vector(requires_grad=True)),
    "autograd.backward": lambda: (lambda it: (torch.autograd.backward([it.sum(), it.mean()]), it.grad))(
        vector(requires_grad=True)
    ),
    "autograd.backward of a tuple with gradients": lambda: (
        lambda it: (torch.autograd.backward((it,), (torch.ones(3),)), it.grad)
    )(vector(requires_grad=True)),
    "autograd.backward of nothing": lambda: torch.autograd.backward([]),
    "autograd.backward without arguments": lambda: torch.autograd.backward(),
    "autograd.backward by an old name": lambda: torch.autograd.backward(
        vector(requires_grad=True), grad_variables=torch.ones(3)
    ),
    "autograd.backward by both names": lambda: torch.autograd.backward(
        vector(requires_grad=True), torch.ones(3), grad_variables=torch.ones(3)
    ),
    "autograd.backward of a number": lambda: torch.autograd.backward(1.0),
    "grad": lambda: (lambda it: torch.autograd.grad(loss_of(it), it))(vector(requires_grad=True)),
    "grad for a generator": lambda: (lambda it: torch.autograd.grad(loss_of(it), (one for one in [it])))(
        vector(requires_grad=True)
    ),
    "grad for a list": lambda: (lambda it: torch.autograd.grad([loss_of(it)], [it]))(vector(requires_grad=True)),
    "grad for what is not used": lambda: torch.autograd.grad(
        loss_of(vector(requires_grad=True)), vector(requires_grad=True)
    ),
    "grad for what may not be used": lambda: torch.autograd.grad(
        loss_of(vector(requires_grad=True)), vector(requires_grad=True), allow_unused=True
    ),
    "grad for nothing": lambda: torch.autograd.grad(loss_of(vector(requires_grad=True)), []),
    "grad for none": lambda: torch.autograd.grad(loss_of(vector(requires_grad=True)), None),
    "grad without arguments": lambda: torch.autograd.grad(),
    "grad by keywords": lambda: (lambda it: torch.autograd.grad(outputs=loss_of(it), inputs=it))(
        vector(requires_grad=True)
    ),
    "grad of a batch": lambda: (
        lambda it: torch.autograd.grad(it * 2, it, grad_outputs=torch.eye(3), is_grads_batched=True)
    )(vector(requires_grad=True)),
    "grad with a graph": with_graph,
    "gradcheck": lambda: torch.autograd.gradcheck(loss_of, (torch.ones(3, dtype=torch.float64, requires_grad=True),)),
    "a function of the program's": of_a_function,
    "a function that fails": lambda: Failing.apply(vector(requires_grad=True)).sum().backward(),
    "a function called the wrong way": lambda: Doubled()(vector()),
    "hooks": hooked,
    "a grad accumulator": accumulator,
    "a hook that raises": hook_raises,
    "saved tensors' hooks": saved_tensor_hooks,
    "saved on the CPU": saved_on_cpu,
    "a hook for all gradients": all_gradients_hooked,
    "a checkpoint": lambda: checkpointed(use_reentrant=False),
    "a reentrant checkpoint": lambda: checkpointed(use_reentrant=True),
    "a checkpoint without a gradient": checkpoint_without_a_gradient,
    "a pass within a pass": reentrant,
    "anomalies": anomaly,
    "modules' hooks": module_hooks,
    "hooks of all modules": global_hooks,
    "a forward pass that raises": forward_raises,
    "a module's hook that raises": hook_of_a_module_raises,
    "func.grad": lambda: torch.func.grad(loss_of)(vector()),
    "func.grad_and_value": lambda: torch.func.grad_and_value(loss_of)(vector()),
    "func.vmap": lambda: torch.func.vmap(loss_of)(grid()),
    "func.vmap with bool": lambda: torch.func.vmap(lambda it: it if it > 0 else -it)(vector()),
    "func.vmap with item": lambda: torch.func.vmap(lambda it: it.item())(vector()),
    "func.vmap of operators": lambda: torch.func.vmap(lambda it: (it + 1, 1 - it, it == 1, -it, it[0]))(grid()),
    "func.jacrev": lambda: torch.func.jacrev(lambda it: it**2)(vector()),
    "func.jacfwd": lambda: torch.func.jacfwd(lambda it: it**2)(vector()),
    "func.hessian": lambda: torch.func.hessian(loss_of)(vector()),
    "func.vjp": lambda: (lambda made: (made[0], made[1](torch.ones(3))))(torch.func.vjp(lambda it: it * 2, vector())),
    "func.jvp": lambda: torch.func.jvp(lambda it: it**2, (vector(),), (torch.ones(3),)),
    "func.functionalize": lambda: torch.func.functionalize(lambda it: it.add_(1))(vector()),
    "func.functional_call": functional,
    "gradients per sample": per_sample,
    "autograd.functional": lambda: torch.autograd.functional.jacobian(lambda it: it**2, vector()),
    "autograd.functional.hessian": lambda: torch.autograd.functional.hessian(loss_of, vector()),
    "grad within a transformation": grad_within_transformation,
    "forward mode": lambda: _forward_mode(),
    "the number of a pass": graph_task,
    "a callback at the end of a pass": callback_at_the_end,
    "inference mode": in_inference_mode,
    "gradients assigned": gradients_assigned,
    "requires_grad_": lambda: (vector().requires_grad_(), attempt(torch.tensor([1]).requires_grad_)),
    "a graph's nodes": lambda: _nodes(loss_of(vector(requires_grad=True)).grad_fn),
    "a nested multithreading context": lambda: torch.autograd.set_multithreading_enabled(True),
}


def _forward_mode() -> Any:
    import torch.autograd.forward_ad as forward

    with forward.dual_level():
        made = forward.make_dual(vector(), torch.ones(3)) * 2
        return forward.unpack_dual(made)


def _nodes(node: Any) -> Any:
    return node.name(), [_nodes(one) for one, _ in node.next_functions if one is not None]
