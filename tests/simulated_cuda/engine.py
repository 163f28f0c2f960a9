"""Backward passes on a thread of autograd's own, as for nodes on a device: `threading.enumerate()` does not list it."""

import _thread
import queue
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch

Job = tuple[Callable[[], Any], "queue.SimpleQueue[tuple[Any, BaseException | None]]"]


class Engine:
    """Started with the first pass; what is called from within a pass runs where that one does."""

    def __init__(self, mode: Any) -> None:
        self.ident: int | None = None
        """Of its thread."""
        self._mode = mode
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._original: Callable[..., Any] = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """In the place of `torch.autograd`'s own."""
        if get_ident() == self.ident:
            return self._original(*args, **kwargs)
        if self.ident is None:
            started: queue.SimpleQueue[int] = queue.SimpleQueue()
            _thread.start_new_thread(self._work, (started,))
            self.ident = started.get()
        answer: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        adopt = self._mode.as_here()

        def run() -> Any:
            adopt()  # autograd runs each node on the stream of its forward pass
            return self._original(*args, **kwargs)

        self._jobs.put((run, answer))
        result, error = answer.get()
        if error is not None:
            raise error
        return result

    def stop(self) -> None:
        """Its thread ends."""
        if self.ident is not None:
            self._jobs.put(None)
            self.ident = None

    def _work(self, started: "queue.SimpleQueue[int]") -> None:
        started.put(get_ident())
        with self._mode:
            while (job := self._jobs.get()) is not None:
                run, answer = job
                try:
                    answer.put((run(), None))
                except BaseException as error:  # goes on in the thread that called
                    answer.put((None, error))
                del job, run, answer
