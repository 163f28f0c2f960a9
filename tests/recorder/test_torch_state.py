"""What is asked of torch's own library says what Python's functions say, and is left alone where it does not."""

import ctypes
import threading

import pytest
import torch

from efprof.recorder import torch_state
from efprof.recorder.torch_state import address_of_grad_mode, address_of_sequence_number


def test_the_sequence_number_is_the_calling_threads_own() -> None:
    address = address_of_sequence_number()
    if not address:
        pytest.skip("this torch has no such function")
    peek = ctypes.CFUNCTYPE(ctypes.c_uint64)(address)

    def check() -> None:
        for _ in range(3):
            torch.ones(2, requires_grad=True).sum()
            seen.append((peek(), torch.autograd._get_sequence_nr()))

    seen: list[tuple[int, int]] = []
    check()
    other = threading.Thread(target=check)
    other.start()
    other.join()
    assert [here for here, _ in seen] == [there for _, there in seen]
    assert len({here for here, _ in seen[:3]}) == 3


def test_the_grad_mode_is_the_one_that_is_set() -> None:
    address = address_of_grad_mode()
    if not address:
        pytest.skip("this torch has no such function")
    is_enabled = ctypes.CFUNCTYPE(ctypes.c_bool)(address)
    with torch.no_grad():
        seen = [is_enabled()]
        with torch.enable_grad():
            seen.append(is_enabled())
        with torch.inference_mode():
            seen.append(is_enabled())
    assert seen == [False, True, False]


def test_a_torch_without_these_functions_is_asked_through_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_state, "SEQUENCE_NUMBER", ("libtorch_cpu.so", "no_such_function"))
    monkeypatch.setattr(torch_state, "GRAD_MODE", ("no_such_library.so", "no_such_function"))
    assert (address_of_sequence_number(), address_of_grad_mode()) == (0, 0)


def test_a_function_that_says_something_else_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.ones(2, requires_grad=True).sum()
    sequence_number, grad_mode = torch_state.SEQUENCE_NUMBER, torch_state.GRAD_MODE
    monkeypatch.setattr(torch_state, "SEQUENCE_NUMBER", grad_mode)
    monkeypatch.setattr(torch_state, "GRAD_MODE", sequence_number)
    with torch.no_grad():
        assert address_of_sequence_number() == 0
    assert address_of_grad_mode() == 0
