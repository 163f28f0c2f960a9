"""Settings that hold for every test, and what any test may ask for."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from efprof.model import Finding
from efprof.report.verdict import VerdictLines
from tests.support.processes import adopt_orphans, end_processes_since, started_processes
from tests.support.sentences import MAX_WORDS, faulty_sentences
from tests.support.waiting import MAX_WAIT_S

# Two workers share two cores with the type checker: threads of torch would mostly wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples on every run: a rule that errs once in a thousand must not fail one build in a hundred.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

adopt_orphans()

LONGEST = (
    "scripts/test_scripts.py", "recorder/hooks/test_conformance.py", "recorder/hooks/test_compilation.py",
    "test_docs.py", "recorder/holders/test_holders.py", "recorder/launch/test_training_process.py",
    "recorder/launch/test_launchers.py", "test_wheel.py", "commands/test_agents_page.py",
    "recorder/collectors/test_worker_samples.py", "energy_flow/training/test_resume.py",
)  # fmt: skip
"""Ten seconds each, and more. They come first: a worker whose last file is such a one lets the other wait for it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


# A shell ignores the first two for what runs in its background, nohup the third; programs inherit that.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _no_process_left_behind() -> Iterator[None]:
    """A test ends what it starts: one after which a process goes on running fails, and the process is killed."""
    before = set(started_processes())
    yield
    left = end_processes_since(before, patience_s=MAX_WAIT_S)
    assert not left, f"left running, and killed now: {'; '.join(left)}"


@pytest.fixture(autouse=True)
def _small_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heap that a recording or the garbage collector looks through is that of the test alone.

    The million objects of pytest and torch are frozen, which is none of a program's doing: the recorder is not told.
    They stay so: to count them, or to thaw and collect them, takes longer than most tests.
    """
    gc.collect()
    gc.freeze()
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)


@pytest.fixture(autouse=True)
def _short_sentences(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What any test has told of a run is in sentences of at most 25 words, and no line of it is empty."""
    made: list[Finding | VerdictLines] = []

    def note(kind: type[Finding] | type[VerdictLines]) -> None:
        init = kind.__init__

        def noting(self: Finding | VerdictLines, **fields: Any) -> None:
            init(self, **fields)
            made.append(self)

        monkeypatch.setattr(kind, "__init__", noting)

    note(Finding)
    note(VerdictLines)
    yield
    faulty = {sentence for told in made for sentence in faulty_sentences(told)}
    assert not faulty, f"empty, or over {MAX_WORDS} words: {sorted(faulty)}"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine make a small step a hundred times as long."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
