"""Compiles a function with torch.compile for tensors whose number of rows changes from call to call."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from energy_flow.errors import EnergyFlowError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """`function`, compiled at its first call for any sizes; anew only for what is not a matter of sizes.

    Raises:
        EnergyFlowError: when this machine cannot compile: at once, or at the first call where a compiler is missing.

    """
    from torch._dynamo.exc import BackendCompilerFailed  # takes seconds to import

    try:
        fast = torch.compile(function, dynamic=True)
    except RuntimeError as error:
        raise _cannot_compile(error) from error

    @wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return fast(*args, **kwargs)
        except BackendCompilerFailed as error:
            raise _cannot_compile(error.inner_exception) from error

    return run


def _cannot_compile(error: Exception) -> EnergyFlowError:
    reason = str(error).partition("\n")[0] or type(error).__name__
    return EnergyFlowError(
        f"runtime.compile=true does not work on this machine ({reason}): set runtime.compile=false, "
        "or install what torch.compile builds with, g++ for the CPU and triton for CUDA"
    )
