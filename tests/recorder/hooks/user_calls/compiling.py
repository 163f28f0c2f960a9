"""TorchScript, symbolic traces, exports and compiled code."""

import functools
from typing import Any

import torch

from tests.recorder.hooks.user_calls.calls import Calls, grid, vector
from tests.recorder.hooks.user_calls.training import model


def arithmetic(it: torch.Tensor) -> torch.Tensor:
    made = (it + 1) * 2 - it / 3
    made = -(made**2) + abs(it)
    if bool(made.sum() > 0):
        made = made[1:]
    return made


def with_operators(it: torch.Tensor) -> Any:
    other = it.clone()
    other += 1
    other[0] = 5.0
    return (
        it + 1,
        1 - it,
        it * it,
        it == it,
        it > 0,
        it & it if it.dtype == torch.bool else ~(it > 0),
        other,
        it[1:],
        -it,
    )


def with_methods(it: torch.Tensor) -> Any:
    return it.__add__(1), it.__eq__(it), torch.Tensor.__mul__(it, 2), it.__rsub__(1)


def with_reads(it: torch.Tensor) -> Any:
    """Each breaks the graph."""
    made = it * 2
    if made.sum() > 0:
        made = made + made.sum().item()
    return made, float(made[0]), made.tolist()


def scripted_gradient(it: torch.Tensor) -> torch.Tensor:
    made = torch.autograd.grad([(it * 2).sum()], [it])[0]
    assert made is not None
    return made


class Scripted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 2)

    def forward(self, it: torch.Tensor) -> torch.Tensor:
        made = self.inner(it)
        if made.sum() > 0:
            made = made + 1
        return made * int(made.size(0))


def seeded(kind: Any) -> Any:
    torch.manual_seed(1)
    return kind()


def script_of(function: Any) -> Any:
    made = torch.jit.script(function)
    return made.code, made(vector())


def traced() -> Any:
    made = torch.jit.trace(arithmetic, vector(), check_trace=False)
    return [node.kind() for node in made.graph.nodes()], made(vector())


def traced_model() -> Any:
    made = torch.jit.trace(model(), torch.ones(1, 3))
    return made.code, made(torch.ones(1, 3))


def graph_of(root: Any) -> Any:
    made = torch.fx.symbolic_trace(root)
    return [(node.op, str(node.target), str(node.args)) for node in made.graph.nodes], made.code


def made_graph() -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(arithmetic_without_bool)(vector()).code


def arithmetic_without_bool(it: torch.Tensor) -> torch.Tensor:
    return (it + 1) * 2 - it / 3 + it[0]


def exported() -> Any:
    made = torch.export.export(model(), (torch.ones(2, 3),))
    return [(node.op, str(node.target)) for node in made.graph.nodes]


def forget_compiled_code() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def _graphs(function: Any, *given: Any) -> Any:
    """The results of code compiled from scratch, and the graphs that the compiler made of it."""
    forget_compiled_code()
    graphs: list[list[str]] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append([f"{node.op} {node.target}" for node in graph.graph.nodes])
        return graph.forward

    compiled = torch.compile(function, backend=backend)
    return compiled(*given), compiled(*given), graphs


def compiled_training(backend: str) -> Any:
    forget_compiled_code()
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    compiled = torch.compile(made, backend=backend)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = compiled(grid()[:, :3]).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    counted = torch._dynamo.utils.counters
    return losses, list(made.parameters()), dict(counted["stats"]), dict(counted["graph_break"])


def compiled_step() -> Any:
    forget_compiled_code()
    made = model()
    optimizer = torch.optim.Adam(made.parameters(), lr=0.1)
    made(torch.ones(1, 3)).sum().backward()
    step = torch.compile(optimizer.step, backend="eager")
    step()
    step()
    return list(made.parameters()), dict(torch._dynamo.utils.counters["graph_break"])


def compiled_whole() -> Any:
    """A function that fails to compile whole says why."""
    forget_compiled_code()
    return torch.compile(with_reads, backend="eager", fullgraph=True)(vector())


def explained() -> Any:
    forget_compiled_code()
    made = torch._dynamo.explain(with_reads)(vector())
    return made.graph_count, made.graph_break_count, [str(one.reason) for one in made.break_reasons]


def decorated() -> Any:
    forget_compiled_code()

    @torch.compile(backend="eager")
    def function(it: torch.Tensor) -> torch.Tensor:
        return it * 2

    return function(vector()), function.__name__, function.__wrapped__ is not None


def disabled() -> Any:
    return torch.compiler.disable(arithmetic)(vector()), torch.compiler.is_compiling()


def compiled_module_is() -> Any:
    made = torch.compile(model(), backend="eager")
    return type(made).__name__, isinstance(made, torch.nn.Module), sorted(made.state_dict()), sorted(vars(made))


SCRIPTS: Calls = {
    "a scripted function": lambda: script_of(arithmetic),
    "a scripted gradient": lambda: _scripted_gradient(),
    "a scripted module": lambda: (lambda it: (it.code, it(torch.ones(2, 3))))(torch.jit.script(seeded(Scripted))),
    "a script that cannot be": lambda: torch.jit.script(with_reads),
    "a traced function": traced,
    "a traced module": traced_model,
    "a symbolic trace": lambda: graph_of(model()),
    "a symbolic trace of operators": lambda: graph_of(arithmetic_without_bool),
    "a symbolic trace that cannot be": lambda: graph_of(arithmetic),
    "a graph of operations": made_graph,
    "a compiled module's type": compiled_module_is,
    "compiled by a wrong backend": lambda: torch.compile(arithmetic, backend="no such"),
    "compiled not at all": lambda: torch.compile(arithmetic, disable=True)(vector()),
    "disabled": disabled,
}

COMPILING: Calls = {
    "compiled operators": lambda: _graphs(with_operators, vector()),
    "compiled methods of operators": lambda: _graphs(with_methods, vector()),
    "compiled reads": lambda: _graphs(with_reads, vector()),
    "a compiled branch": lambda: _graphs(arithmetic, vector()),
    "a compiled gradient": lambda: _graphs(_loss_and_gradient, vector(requires_grad=True)),
    "a compiled module, trained": lambda: compiled_training("eager"),
    "a compiled module, differentiated": lambda: compiled_training("aot_eager"),
    "a compiled step of an optimizer": compiled_step,
    "what cannot be compiled whole": compiled_whole,
    "an explanation": explained,
    "a decorated function": decorated,
    "a compiled partial function": lambda: _graphs(functools.partial(torch.add, alpha=2), vector(), torch.ones(3)),
    "an export": exported,
}


def _loss_and_gradient(it: torch.Tensor) -> Any:
    loss = (it**2).sum()
    loss.backward()
    return loss, it.grad


def _scripted_gradient() -> Any:
    made = torch.jit.script(scripted_gradient)
    return made.code, made(vector(requires_grad=True))
