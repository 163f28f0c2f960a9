"""Time on a simulated device: what a stream is given runs after what it was given before, and the host goes on."""

import time
from dataclasses import dataclass
from typing import Any

import torch

NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"


@dataclass(eq=False)
class Stream:
    """A queue: so much is left to do on it."""

    device: int
    free_at_ns: int = 0
    """When it will have done what it was given, by `time.perf_counter_ns`."""

    def give(self, length_ns: float) -> int:
        """Have it work for so long; the result is when it will be done."""
        self.free_at_ns = max(self.free_at_ns, time.perf_counter_ns()) + round(length_ns)
        return self.free_at_ns

    def wait(self) -> None:
        """The host waits until it is idle."""
        until(self.free_at_ns)

    synchronize = wait

    def wait_stream(self, other: "Stream") -> None:
        """What it is given from now on begins after what the other was given so far."""
        self.free_at_ns = max(self.free_at_ns, other.free_at_ns)

    def record_event(self, event: Any = None) -> Any:
        """Have a mark set, a new one unless it is given."""
        event = torch.cuda.Event() if event is None else event  # type: ignore[no-untyped-call]
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        """What it is given from now on begins after that mark."""
        event.wait(self)

    def query(self) -> bool:
        """Whether it is idle."""
        return time.perf_counter_ns() >= self.free_at_ns


def until(at_ns: int) -> None:
    """The host waits for this instant."""
    left = at_ns - time.perf_counter_ns()
    if left > 0:
        time.sleep(left / 1e9)


def stream_class(cuda: Any) -> type[Stream]:
    """`torch.cuda.Stream` of these devices."""

    class NewStream(Stream):
        def __init__(self, device: Any = None, priority: int = 0) -> None:
            super().__init__(cuda.index_of(device))

    return NewStream


def device_class(cuda: Any) -> type:
    """`torch.cuda.device` of these devices: within, one is the current device."""

    class device:  # noqa: N801
        def __init__(self, device: Any) -> None:
            self.idx = cuda.index_of(device)

        def __enter__(self) -> None:
            self._before, cuda.current = cuda.current, self.idx

        def __exit__(self, *_: object) -> None:
            cuda.current = self._before

    return device


def event_class(cuda: Any) -> type:
    """`torch.cuda.Event` of these devices: a mark in a stream's queue."""

    class Event:
        def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
            cuda.refuse_in_capture()
            cuda.note_call("Event")
            self.enable_timing = enable_timing
            self.device: int | None = None
            """That of the stream that it was first recorded in."""
            self.at_ns: int | None = None
            self.is_captured = False

        def record(self, stream: Stream | None = None) -> None:
            stream = stream or cuda.current_stream()
            cuda.note_call("Event.record")
            if self.device is not None and self.device != stream.device:
                raise RuntimeError(
                    f"Event device {self.device} does not match recording stream's device {stream.device}."
                )
            self.device = stream.device
            cuda.contexts.add(stream.device)
            self.at_ns = max(stream.free_at_ns, time.perf_counter_ns())
            self.is_captured = cuda.capturing is not None
            if self.is_captured:
                cuda.tape.append(None)  # a node of the graph

        def query(self) -> bool:
            cuda.refuse_in_capture()
            cuda.note_call("Event.query")
            if self.is_captured:
                raise RuntimeError("CUDA error: the event was last recorded in a capturing stream")
            is_done = self.at_ns is None or time.perf_counter_ns() >= self.at_ns
            cuda.deliver()  # after the clock was read: what has arrived by then is there
            return is_done

        def synchronize(self) -> None:
            cuda.note_wait("Event.synchronize")
            until(self.at_ns or 0)
            cuda.deliver()

        def wait(self, stream: Stream | None = None) -> None:
            stream = stream or cuda.current_stream()
            stream.free_at_ns = max(stream.free_at_ns, self.at_ns or 0)

        def elapsed_time(self, end: "Event") -> float:
            if not (self.enable_timing and end.enable_timing):
                raise RuntimeError("both events need enable_timing=True")
            if self.at_ns is None or end.at_ns is None:
                raise RuntimeError("both events must be recorded before their distance is asked for")
            if self.device != end.device:
                raise RuntimeError("CUDA error: invalid resource handle")
            if max(self.at_ns, end.at_ns) > time.perf_counter_ns():
                raise RuntimeError("CUDA error: device not ready")
            return (end.at_ns - self.at_ns) / 1e6

    return Event
