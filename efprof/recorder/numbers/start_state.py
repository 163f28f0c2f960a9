"""What random numbers begin with: kept, so that a second run of the command can begin with the same."""

import os
import random
import sys

import torch

from efprof.artifacts.events import StartKept
from efprof.artifacts.hunts import StartState
from efprof.recorder.session.options import read_options
from efprof.recorder.session.session import Session


def start(session: Session) -> None:
    """Of a program that `efprof record` has started; one that begins to record itself may have drawn some already."""
    if read_options() is not None:
        session.note(StartKept(step=0, state=state_now()))


def state_now() -> StartState:
    version, words, second = random.getstate()
    *words, place = words
    numpy, kept = sys.modules.get("numpy"), None
    if numpy is not None:
        _, keys, at, has_second, normal = numpy.random.get_state()
        kept = keys.tobytes(), int(at), int(has_second), float(normal)
    return StartState(
        torch_seed=torch.initial_seed(),
        python=(version, b"".join(word.to_bytes(4) for word in words), place, second),
        numpy=kept,
        hash_seed=os.environ.get("PYTHONHASHSEED", ""),
        num_threads=torch.get_num_threads(),
    )


def set_state(state: StartState) -> None:
    """All but the hash seed, which Python takes as it starts."""
    torch.default_generator.manual_seed(state.torch_seed)
    version, words, place, second = state.python
    numbers = (int.from_bytes(words[at : at + 4]) for at in range(0, len(words), 4))
    random.setstate((version, (*numbers, place), second))
    numpy = sys.modules.get("numpy")
    if state.numpy is not None and numpy is not None:
        keys, *rest = state.numpy
        numpy.random.set_state(("MT19937", numpy.frombuffer(keys, numpy.uint32), *rest))
    if state.num_threads not in (0, torch.get_num_threads()):
        torch.set_num_threads(state.num_threads)
