"""What stands in the place of torch's functions is called as they are, and refuses what they refuse."""

import ast
import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.simulated_cuda.cuda import SimulatedCuda

PASSES_ON = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
IN_NO_STUB = {"_cuda_attach_out_of_memory_observer", "_cuda_hasPrimaryContext", "_cuda_isInBadFork"}
"""Functions of C that the stubs of some or all versions of torch leave out."""
Names = tuple[str, ...]


def replaced() -> Iterator[tuple[Any, str, Callable[..., Any], Callable[..., Any]]]:
    """All functions and classes: what has them, their name, torch's own and ours."""
    cuda = SimulatedCuda()
    with cuda.in_place():
        ours = [(owner, name, getattr(owner, name)) for owner, name in cuda.replaced]
    for owner, name, new in ours:
        if callable(new):
            yield owner, name, getattr(owner, name, None), new


def arguments(function: Callable[..., Any]) -> list[tuple[object, ...]]:
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


def names(function: Callable[..., Any]) -> Names:
    return tuple(inspect.signature(function).parameters)


def is_called_as(function: Callable[..., Any], forms: list[Names]) -> bool:
    """True if it has the arguments of one of these; further ones, of newer versions, need not be given."""
    ours = list(inspect.signature(function).parameters.values())
    known = [ours[: len(form)] for form in forms if all(one.default is not one.empty for one in ours[len(form) :])]
    return any(tuple(one.name for one in start) in forms for start in known)


def hands_all_on(function: Callable[..., Any]) -> bool:
    """True for one that gives what it does not know to torch's own, which refuses it."""
    return set(PASSES_ON) <= {one.kind for one in inspect.signature(function).parameters.values()}


@functools.cache
def stubs() -> dict[str, list[Names]]:
    """Of the functions of `torch._C`, and methods of its classes as `Class.method`, the arguments of each form."""
    found: dict[str, list[Names]] = {}
    text = (Path(torch.__file__).parent / "_C" / "__init__.pyi").read_text()
    for node in ast.parse(text).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for function in inner:
            if isinstance(function, ast.FunctionDef):
                declared = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
                found.setdefault(prefix + function.name, []).append(tuple(one.arg for one in declared))
    return found


def test_torchs_python_functions_are_replaced_by_ones_with_the_same_arguments() -> None:
    seen = []
    for owner, name, old, new in replaced():
        if owner is torch._C or inspect.isclass(new) or not inspect.isroutine(old) or hands_all_on(new):
            continue
        try:
            expected = arguments(old)
        except ValueError:  # it is C's
            continue
        first = int(inspect.isclass(owner))  # whatever a method calls its object
        assert arguments(new)[first:] == expected[first:], f"{owner.__name__}.{name}"
        seen.append(name)
    assert {"is_current_stream_capturing", "is_built"} <= set(seen)


def test_torchs_classes_are_replaced_by_ones_with_the_same_methods() -> None:
    seen = set()
    for owner, name, old, new in replaced():
        if owner is torch._C or not inspect.isclass(new):
            continue
        for method, function in vars(old).items():
            if inspect.isfunction(function):
                assert arguments(getattr(new, method)) == arguments(function), f"{name}.{method}"
                seen.add(f"{name}.{method}")
    assert {"Event.record", "Stream.wait_stream", "CUDAGraph.capture_begin", "graph.__init__"} <= seen


@pytest.mark.parametrize("owner", [torch._C, torch.Tensor], ids=["torch._C", "torch.Tensor"])
def test_functions_of_c_are_replaced_by_ones_with_the_arguments_of_its_stubs(owner: Any) -> None:
    prefix = "" if owner is torch._C else "TensorBase."
    for place, name, old, new in replaced():
        if place is not owner or inspect.isclass(new) or inspect.isclass(old) or hands_all_on(new):
            continue
        if name not in IN_NO_STUB or prefix + name in stubs():
            forms = [("tensor", *form[1:]) if prefix else form for form in stubs().get(prefix + name, [])]
            assert is_called_as(new, forms), f"{name}{names(new)}: {forms}"


def test_classes_of_c_are_replaced_by_ones_with_the_arguments_of_its_stubs() -> None:
    for owner, name, _, new in replaced():
        if owner is torch._C and inspect.isclass(new):
            for method, function in vars(new).items():
                forms = stubs().get(f"{name}.{method}")
                if forms and inspect.isfunction(function):
                    assert names(function) in forms, f"{name}.{method}{names(function)}: {forms}"


def test_what_torch_refuses_is_refused() -> None:
    with SimulatedCuda().in_place():
        for wrong in (
            lambda: torch.cuda.memory._record_memory_history(None, entries=1),
            lambda: torch.cuda.Event(timing=True),
            lambda: torch.cuda.Stream(length=1),
            lambda: torch.cuda.current_stream(dev=0),
            lambda: torch.cuda.CUDAGraph(keep=True),
            lambda: torch.ones(1).cuda(where=0),
            lambda: torch.ones(1, where="cuda"),
        ):
            with pytest.raises(TypeError):
                wrong()
