"""What lies in a class in place of one of its functions, and is that function to whoever asks for it or pickles it."""

import operator
from collections.abc import Callable
from types import MethodType
from typing import Any


class Switch:
    """On or off; a class made of this one may change it."""

    is_on = False


class StandIn:
    """Is `function` to whoever calls the method of an object, and `original` to whoever asks the class or copies it.

    Of a script's own classes cloudpickle and dill write all functions down, to be read where nobody knows ours.
    """

    __slots__ = ("_function", "_light", "_original")

    def __init__(self, function: Callable[..., Any], original: Callable[..., Any], light: Switch | None = None) -> None:
        """While `light` is on, it is `original` to all."""
        self._function = function
        self._original = original
        self._light = light or Switch()

    def __get__(self, instance: object, kind: type | None = None) -> Callable[..., Any]:
        if instance is None:
            return self._original
        return MethodType(self._original if self._light.is_on else self._function, instance)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return operator.getitem, ((self._original,), 0)
