"""The stack of another thread is read whole, whatever that thread does, and the program sees nothing of it."""

import gc
import subprocess
import sys
import threading
import time

from efprof.recorder.session.stacks import MOST_CALLS, calls_of
from tests.support.waiting import MAX_WAIT_S

RESTLESS = """
import gc, sys, threading
sys.addaudithook(lambda *_: [number for number in range(3)])
from efprof.recorder.session.stacks import calls_of

class Circular:
    def __init__(self):
        self.itself = self
    def __del__(self):
        [number for number in range(3)]

def recur(depth):
    Circular()
    total = sum(number for number in range(3))
    return total + recur(depth - 1) if depth else total

def fail(depth):
    if not depth:
        raise ValueError
    try:
        fail(depth - 1)
    finally:
        Circular()

def sample():
    for _ in range(20_000):
        calls = calls_of(ident)
        seen.add(calls[-1].code.co_name)
        depths.add(len(calls))

ident, seen, depths = threading.get_ident(), set(), set()
thread = threading.Thread(target=sample)
sys.setswitchinterval(5e-6)
thread.start()
while thread.is_alive():
    recur(30)
    try:
        fail(20)
    except ValueError:
        pass
    sorted(range(50), key=lambda number: -number)
print(seen == {"<module>"}, len(depths) > 3, gc.isenabled())
"""


def test_a_thread_is_read_whole_while_it_calls_returns_raises_and_collects_garbage() -> None:
    """To walk along its frames in Python ends such a program by a segmentation fault, under Python 3.11; to have an
    audit hook of Python's called at each of them reads a wrong stack.
    """
    done = subprocess.run(
        [sys.executable, "-c", RESTLESS], capture_output=True, text=True, check=False, timeout=MAX_WAIT_S
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"] * 3


def test_calls_are_told_innermost_first_with_their_lines() -> None:
    ready, over, found = threading.Event(), threading.Event(), []

    def wait() -> None:
        ready.set()
        over.wait(MAX_WAIT_S)

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait(MAX_WAIT_S)
    found = calls_of(thread.ident)
    over.set()
    thread.join(MAX_WAIT_S)
    place = next(number for number, call in enumerate(found) if call.code is wait.__code__)
    assert found[place].full_name == f"{__name__}.{wait.__qualname__}"
    assert found[place].line in range(wait.__code__.co_firstlineno + 1, wait.__code__.co_firstlineno + 3)
    assert [call.full_name for call in found[place:]][1:] == [
        f"threading.Thread.{name}" for name in ("run", "_bootstrap_inner", "_bootstrap")
    ]


def count_odd_numbers(is_over: threading.Event) -> int:
    odd = 0
    while not is_over.is_set():
        for number in range(10_000):
            if number & 1:
                odd += 1
    return odd


def test_where_a_loop_goes_back_to_its_begin_the_line_is_one_of_the_loops() -> None:
    is_over = threading.Event()
    thread = threading.Thread(target=count_odd_numbers, args=(is_over,))
    thread.start()
    lines = set()
    for _ in range(200):
        time.sleep(0.001)
        lines |= {call.line for call in calls_of(thread.ident) if call.code is count_odd_numbers.__code__}
    is_over.set()
    thread.join(MAX_WAIT_S)
    first = count_odd_numbers.__code__.co_firstlineno
    assert lines <= set(range(first + 1, first + 6))


def test_a_thread_that_is_over_has_no_calls() -> None:
    assert calls_of(None) == calls_of(-1) == []


def test_of_a_very_deep_stack_the_innermost_calls_are_read() -> None:
    def at_depth(depth: int) -> int:
        return at_depth(depth - 1) if depth else len(calls_of(threading.get_ident()))

    assert at_depth(600) == MOST_CALLS


def test_garbage_collection_stays_off_where_the_program_turned_it_off() -> None:
    gc.disable()
    try:
        calls_of(threading.get_ident())
        assert not gc.isenabled()
    finally:
        gc.enable()
    calls_of(threading.get_ident())
    assert gc.isenabled()
