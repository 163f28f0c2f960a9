"""What tells where a step ends: optimizers that alternate, a trainer that is a module, updates made by hand."""

from collections.abc import Iterable
from typing import Any
from weakref import ref

import torch

from efprof.recorder.numbers.step_numbers import living, nodes_behind, nodes_of, parameters_of
from efprof.recorder.session.foreign import is_tensor

MAX_SAMPLE = 4096
"""Of a parameter's values that are compared."""

MAX_NODES = 10_000
"""Of a graph, looked at for its first parameter."""


class OptimizerCycle:
    """The order in which optimizers step, as long as it is one: generator, critic, generator, critic.

    Where it is none, every optimizer's step ends a step. One that stepped alone several times before the first other
    came alternates only once a whole round has shown it: it may as well step five times to the other's one.
    """

    def __init__(self) -> None:
        self._order: list[int] = []
        self._last: int | None = None
        self.is_strict = True
        self._has_repeated = self._is_on_trial = False

    def stepped(self, optimizer: int) -> None:
        if optimizer not in self._order:
            self._order.append(optimizer)
            self._is_on_trial = self._has_repeated
        elif self.is_alone:
            self._has_repeated = True
        elif self._last is not None:
            following = self._order[(self._order.index(self._last) + 1) % len(self._order)]
            self.is_strict &= optimizer == following
            self._is_on_trial &= optimizer != self._order[-1]
        self._last = optimizer

    def is_complete(self, stepped: list[int]) -> bool:
        """Whether a step in which these optimizers stepped, in this order, has seen the last of the round."""
        is_alternating = self.is_strict and not (self.is_alone or self._is_on_trial)
        return not is_alternating or stepped[-1] == self._order[-1]

    @property
    def is_alone(self) -> bool:
        return len(self._order) < 2


class TrainerModules:
    """Classes of modules whose call holds a whole step: within it an optimizer steps the module's own parameters.

    So does a trainer that is a module, and what a framework wraps a whole step in; but not a model that fits something
    else on its way, as in meta-learning.
    """

    def __init__(self) -> None:
        self._kinds = set[type[torch.nn.Module]]()
        self._called: ref[torch.nn.Module] | None = None

    def __contains__(self, module: object) -> bool:
        return type(module) in self._kinds

    def called(self, module: torch.nn.Module | None) -> None:
        self._called = None if module is None else ref(module)

    def has_found(self, optimizer: torch.optim.Optimizer) -> bool:
        """It steps within that call: whether that was no forward pass."""
        module = None if self._called is None else self._called()
        updated = set(map(id, parameters_of(optimizer)))
        if module is None or not any(id(parameter) in updated for parameter in module.parameters()):
            return False
        self._kinds.add(type(module))
        return True


class ParameterProbe:
    """Tells whether a program updates its parameters by hand; asked until a torch optimizer steps for the first time.

    It watches one parameter from the end of a backward pass to the beginning of what comes next: its values, or its
    gradient, change in between only where somebody updates it. An update within the pass, as by a hook, is not seen.
    """

    def __init__(self) -> None:
        self._parameter: ref[torch.Tensor] | None = None
        self._state: tuple[int, int, int] | None = None
        self._sample: torch.Tensor | None = None
        self._is_optimized: bool | None = None

    def watch_loss(self, tensors: Any) -> None:
        """Backward is called on these: watch a parameter that they were made from."""
        if self._alive() is None:
            leaves = (getattr(node, "variable", None) for node in nodes_behind(nodes_of(tensors)[-1:], MAX_NODES))
            self._watch(next((leaf for leaf in leaves if is_tensor(leaf)), None))

    def watch_inputs(self, inputs: Any) -> None:
        if self._alive() is None:
            is_one = is_tensor(inputs) or not isinstance(inputs, Iterable)
            given = [inputs] if is_one else inputs  # such as the values of a dict
            self._watch(next((one for one in given if is_tensor(one) and one.is_leaf), None))

    def note_backward(self) -> None:
        parameter = self._alive()
        if parameter is not None:
            self._state, self._sample = _state_of(parameter), _sample_of(parameter)

    def has_updated(self) -> bool:
        """Whether somebody has changed the parameter or its gradient since, and it was no torch optimizer."""
        parameter = self._alive()
        if self._state is None:
            return False
        if parameter is not None and _state_of(parameter) == self._state and not self._has_other_values(parameter):
            return False
        self._state = None
        if self._is_optimized is None:
            # By a torch optimizer that has not stepped yet and is in charge of it, or of any; asked once in a program.
            every = (one for optimizer in living(torch.optim.Optimizer) for one in parameters_of(optimizer))
            self._is_optimized = any(parameter is None or one is parameter for one in every)
        return not self._is_optimized

    def _has_other_values(self, parameter: torch.Tensor) -> bool:
        """Whether `parameter.data` was changed or replaced, of which its version tells nothing."""
        before, now = self._sample, _sample_of(parameter)
        if before is None or now is None:
            return False
        with torch._C._DisableTorchDispatch():
            return before.dtype != now.dtype or not torch.equal(before, now)

    def _alive(self) -> torch.Tensor | None:
        return None if self._parameter is None else self._parameter()

    def _watch(self, parameter: torch.Tensor | None) -> None:
        is_wrapped = parameter is not None and torch._C._functorch.is_functorch_wrapped_tensor(parameter)
        self._parameter = None if parameter is None or is_wrapped else ref(parameter)


def _state_of(parameter: torch.Tensor) -> tuple[int, int, int]:
    gradient = parameter.grad
    return parameter._version, id(gradient), -1 if gradient is None else gradient._version


def _sample_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """Some of its values; None where it takes a device or another rank to tell, and while torch.jit.trace takes our
    operations for the program's.
    """
    is_plain = issubclass(type(parameter), torch.nn.Parameter) or type(parameter) is torch.Tensor
    if torch._C._get_tracing_state() is not None or not parameter.is_cpu or not is_plain:
        return None
    with torch._C._DisableTorchDispatch():  # a mode of the program's would see it
        if not parameter.untyped_storage().size():
            return None  # sharded, and given back between the passes
        return parameter.detach().reshape(-1).narrow(0, 0, min(MAX_SAMPLE, parameter.numel())).clone()
