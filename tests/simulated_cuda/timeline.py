"""Time on a simulated device: what a stream is given runs after what it was given before, and the host goes on."""

import itertools
import time
from dataclasses import dataclass
from typing import Any

import torch

NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
CUDA_TYPE = 1
"""The number that C has for devices of this kind."""


@dataclass(eq=False)
class Queue:
    """What a stream has left to do."""

    free_at_ns: int = 0
    """When it will have done what it was given, by `time.perf_counter_ns`."""

    def give(self, length_ns: float) -> int:
        """Have it work for so long; the result is when it will be done."""
        self.free_at_ns = max(self.free_at_ns, time.perf_counter_ns()) + round(length_ns)
        return self.free_at_ns

    def wait_until(self, at_ns: int) -> None:
        """What it is given from now on begins at this instant or later."""
        self.free_at_ns = max(self.free_at_ns, at_ns)


def until(at_ns: int) -> None:
    """The host waits for this instant."""
    left = at_ns - time.perf_counter_ns()
    if left > 0:
        time.sleep(left / 1e9)


def stream_base(cuda: Any) -> type:
    """`torch._C._CudaStreamBase` of these devices: a handle, of which there may be several for one queue."""
    numbers = itertools.count(1)

    class _CudaStreamBase(torch.Stream):
        def __new__(
            cls,
            priority: int = 0,
            stream_id: int = 0,
            device_index: int = 0,
            device_type: int = 0,
            stream_ptr: int = 0,
        ) -> Any:
            if not (stream_id or device_index or device_type):
                stream_id, device_index = next(numbers), cuda.current
                cuda.contexts.add(device_index)
            return super().__new__(cls, stream_id=stream_id, device_index=device_index, device_type=CUDA_TYPE)

        @property
        def cuda_stream(self) -> int:
            return self.stream_id << 4

        @property
        def priority(self) -> int:
            return 0

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return 0, -5

        def query(self) -> bool:
            cuda.refuse_in_capture()
            cuda.ask("Stream.query")
            is_idle: bool = time.perf_counter_ns() >= cuda.queue_of(self).free_at_ns
            cuda.deliver()
            return is_idle

        def synchronize(self) -> None:
            cuda.note_wait("Stream.synchronize")
            until(cuda.queue_of(self).free_at_ns)
            cuda.deliver()

    return _CudaStreamBase


def event_base(cuda: Any) -> type:
    """`torch._C._CudaEventBase` of these devices: a mark in a stream's queue, made when it is first recorded."""
    numbers = itertools.count(1)

    class _CudaEventBase:
        device: torch.device | None = None
        """That of the stream that it was first recorded in."""
        cuda_event = 0
        is_timing = False
        is_captured = False
        at_ns: int | None = None

        def __new__(
            cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
        ) -> Any:
            cuda.note_call("Event")
            event = super().__new__(cls)
            event.is_timing = enable_timing
            return event

        @property
        def event_id(self) -> int:
            return self.cuda_event

        def record(self, stream: Any) -> None:
            cuda.ask("Event.record")
            if self.device is not None and self.device != stream.device:
                raise RuntimeError(
                    f"Event device {self.device.index} does not match recording stream's device {stream.device_index}."
                )
            self.device = stream.device
            self.cuda_event = self.cuda_event or next(numbers) << 4
            cuda.contexts.add(stream.device_index)
            self.at_ns = max(cuda.queue_of(stream).free_at_ns, time.perf_counter_ns())
            self.is_captured = cuda.capturing is not None
            if self.is_captured:
                cuda.tape.append(None)  # a node of the graph

        def query(self) -> bool:
            cuda.refuse_in_capture()
            cuda.ask("Event.query")
            self._refuse_where_captured()
            is_done = self.at_ns is None or time.perf_counter_ns() >= self.at_ns
            cuda.deliver()  # after the clock was read: what has arrived by then is there
            return is_done

        def synchronize(self) -> None:
            cuda.note_wait("Event.synchronize")
            self._refuse_where_captured()
            until(self.at_ns or 0)
            cuda.deliver()

        def wait(self, stream: Any) -> None:
            cuda.queue_of(stream).wait_until(self.at_ns or 0)

        def elapsed_time(self, other: Any) -> float:
            if not (self.is_timing and other.is_timing):
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            if self.at_ns is None or other.at_ns is None:
                raise ValueError("Both events must be recorded before calculating elapsed time.")
            if self.device != other.device or self.is_captured or other.is_captured:
                raise RuntimeError("CUDA error: invalid resource handle")
            if max(self.at_ns, other.at_ns) > time.perf_counter_ns():
                raise RuntimeError("CUDA error: device not ready")
            return float(other.at_ns - self.at_ns) / 1e6

        def _refuse_where_captured(self) -> None:
            if self.is_captured:
                raise RuntimeError("CUDA error: the event was last recorded in a capturing stream")

    return _CudaEventBase
