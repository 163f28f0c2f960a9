"""What torch notes of a thread, asked of its C++ library: through Python it costs a step 7 us more (measured)."""

import ctypes
from pathlib import Path
from typing import Any

import torch

SEQUENCE_NUMBER = "libtorch_cpu.so", "_ZN2at15sequence_number4peekEv"
GRAD_MODE = "libc10.so", "_ZN3c108GradMode10is_enabledEv"


def address_of_sequence_number() -> int:
    """Of `at::sequence_number::peek`; 0 where this torch has none that says what the function in Python does."""
    peek = _function(*SEQUENCE_NUMBER, ctypes.c_uint64)
    if peek is None or peek() != torch.autograd._get_sequence_nr():  # type: ignore[attr-defined]
        return 0
    return _address(peek)


def address_of_grad_mode() -> int:
    """Of `c10::GradMode::is_enabled`; 0 where this torch has none that says what the function in Python does."""
    is_enabled = _function(*GRAD_MODE, ctypes.c_bool)
    if is_enabled is None:
        return 0
    with torch.no_grad():
        is_right = not is_enabled()
    with torch.enable_grad():
        is_right &= is_enabled()
    return _address(is_enabled) if is_right else 0


def _function(library: str, symbol: str, answer: type[Any]) -> Any:
    try:
        function = getattr(ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / library)), symbol)
    except (AttributeError, OSError):
        return None
    function.restype = answer
    return function


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
