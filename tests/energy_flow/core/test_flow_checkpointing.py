"""Flow steps that backward computes anew: the same numbers from less memory."""

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from energy_flow.config_parsing import load_config
from energy_flow.core import flow_processor
from energy_flow.core.flow_processor import FlowProcessor, FlowResult

SETTINGS = ["flow.max_steps=12", "flow.compaction_lot=0.1", "lattice.depth=9", "lattice.width=6", "lattice.height=6"]


def _run(*assignments: str) -> tuple[FlowResult, list[Tensor]]:
    """The flows' result and the gradients of the input surface and of all parameters."""
    config = load_config("debug", assignments=[*SETTINGS, *assignments])
    torch.manual_seed(3)
    processor = FlowProcessor(config)
    surface = torch.randn(8, config.lattice.height, config.lattice.width, requires_grad=True)
    result = processor(surface)
    result.surface.square().sum().backward()
    return result, [tensor.grad for tensor in (surface, *processor.parameters()) if tensor.grad is not None]


@pytest.mark.parametrize("steps", [1, 3, 12, 20])
def test_computing_steps_anew_changes_neither_outputs_nor_gradients(steps: int) -> None:
    kept, kept_gradients = _run()
    anew, gradients = _run(f"flow.checkpoint_steps={steps}")
    assert float(kept.landed_share) > 0.5
    for expected, value in zip(kept, anew, strict=True):
        torch.testing.assert_close(value, expected)
    for expected, value in zip(kept_gradients, gradients, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


class _SlowCounts:
    """Counts that arrive some steps late, as from a busy GPU; it notes how many were asked for."""

    num_pushed = 0

    def __init__(self) -> None:
        self._under_way: deque[tuple[None, Any]] = deque()

    def push(self, tag: None, tensor: Tensor) -> None:
        type(self).num_pushed += 1
        self._under_way.append((tag, tensor.detach().numpy()))

    def arrived(self) -> list[tuple[None, Any]]:
        return [self._under_way.popleft()] if len(self._under_way) > 2 else []


def test_backward_asks_for_no_counts_since_others_would_have_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    _, expected = _run("flow.compaction_lot=0")
    monkeypatch.setattr(flow_processor, "LateRead", _SlowCounts)
    monkeypatch.setattr(_SlowCounts, "num_pushed", 0)
    _, gradients = _run("flow.checkpoint_steps=2")
    assert _SlowCounts.num_pushed == 6
    for value, masked in zip(gradients, expected, strict=True):
        torch.testing.assert_close(value, masked, rtol=1e-4, atol=1e-5)


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors made within it that are still alive, whoever holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.now: int = 0
        self.peak: int = 0
        self._seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self._seen:
            return
        self._seen.add(storage)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, storage.nbytes())

    def _freed(self, num_bytes: int) -> None:
        self.now -= num_bytes


def _peak_bytes(*assignments: str) -> int:
    with _LiveBytes() as live:
        _run("flow.compaction_lot=0", "flow.convergence_threshold=1", *assignments)
    return live.peak


def test_computing_steps_anew_lowers_the_peak_of_forward_and_backward() -> None:
    assert _peak_bytes("flow.checkpoint_steps=3") < 0.6 * _peak_bytes()
