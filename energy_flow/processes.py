"""The processes of a run under torchrun: who they are, and what they do together; alone, nothing of it costs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from energy_flow.errors import EnergyFlowError

Built = TypeVar("Built")

_OTHER_HAS_ENDED = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "connectFullMesh failed")
"""What gloo says then, in errors that have no class of their own."""
_MAX_WAIT = timedelta(hours=2)  # for the first process alone: a transformers teacher over a large file takes long


@dataclass(frozen=True, kw_only=True, slots=True)
class Processes:
    """This process among those of its run."""

    rank: int  # among all processes of the run, from 0
    world_size: int  # processes of the run
    local_rank: int  # among those of this machine, from 0: the number of its GPU

    @property
    def is_first(self) -> bool:
        """Whether it is the one that builds, prints and saves for all."""
        return self.rank == 0


ALONE = Processes(rank=0, world_size=1, local_rank=0)


def processes_of(environment: Mapping[str, str] = os.environ) -> Processes:
    """Who this process is, by the variables that torchrun sets; without them, and for one process, `ALONE`.

    Raises:
        EnergyFlowError: when some of the variables are missing or no numbers.

    """
    if "RANK" not in environment or environment.get("WORLD_SIZE") == "1":
        return ALONE
    try:
        rank, world_size, local_rank = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    except (KeyError, ValueError) as error:
        raise EnergyFlowError(
            "RANK is set, but WORLD_SIZE and LOCAL_RANK are not all numbers; start with torchrun, or unset RANK"
        ) from error
    return Processes(rank=rank, world_size=world_size, local_rank=local_rank)


@contextmanager
def joined(processes: Processes, device: torch.device) -> Iterator[None]:
    """Let the processes of a run exchange tensors on `device` within; alone, do nothing.

    Raises:
        EnergyFlowError: when the processes do not find each other, or one of them ends before this one.

    """
    if processes.world_size == 1:
        yield
        return
    try:
        if device.type == "cuda":
            distributed.init_process_group("nccl", device_id=device)
        else:
            distributed.init_process_group("gloo")
    except (ValueError, RuntimeError) as error:  # torch's errors of the network are RuntimeErrors
        raise EnergyFlowError(
            f"process {processes.rank} of {processes.world_size} cannot join the others; start with torchrun ({error})"
        ) from error
    try:
        with _end_of_others_told():
            yield
    finally:
        distributed.destroy_process_group()


def first_alone_then_all(
    processes: Processes, build: Callable[[], Built], *, what: str, max_wait: timedelta = _MAX_WAIT
) -> Built:
    """Call `build` in the first process while the others wait, and then in these, which find its result on the disk.

    Raises:
        EnergyFlowError: in a process that waited, when the first one failed at `what` or took too long.

    """
    if processes.world_size == 1:
        return build()
    # A gloo group of its own: its waits end after `max_wait` with an error, and it needs no GPU.
    group = distributed.new_group(backend="gloo", timeout=max_wait)
    is_built = torch.zeros(1, device="cpu")
    if not processes.is_first:
        _wait_for_first(is_built, group, what, max_wait)
        return build()
    try:
        built = build()
        is_built.fill_(1)
    finally:
        distributed.broadcast(is_built, src=0, group=group)
    return built


def wrap(model: nn.Module, device: torch.device, processes: Processes) -> nn.Module:
    """The model to call in the training step: one whose backward averages gradients over the processes.

    Gradients are views into the buckets that are exchanged, which saves a copy of them all. Buffers are not
    exchanged at each forward: the lattice's is a constant. Every parameter takes part in every backward.
    """
    if processes.world_size == 1:
        return model
    device_ids = [device] if device.type == "cuda" else None
    replica = DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=True)
    replica.broadcast_buffers = False  # as an argument it is deprecated since torch 2.13
    return replica


def accumulating(model: nn.Module, *, is_last: bool) -> AbstractContextManager[None]:
    """The context of a micro-batch's forward and backward: only the last one of a step exchanges gradients."""
    if is_last or not isinstance(model, DistributedDataParallel):
        return nullcontext()
    return model.no_sync()


def sum_over_processes(tensor: Tensor, processes: Processes) -> Tensor:
    """The sum of `tensor` over the processes, all of which must call this; alone, the tensor itself.

    On CUDA the host does not wait for it.
    """
    if processes.world_size == 1:
        return tensor
    total = tensor.detach().clone()
    distributed.all_reduce(total)
    return total


def mean_over_processes(tensor: Tensor, processes: Processes) -> Tensor:
    """The mean of the float `tensor` over the processes, all of which must call this; alone, the tensor itself."""
    if processes.world_size == 1:
        return tensor
    return sum_over_processes(tensor, processes) / processes.world_size


def agree_on(number: int, device: torch.device, processes: Processes) -> bool:
    """Whether `number` is the same in all processes, all of which must call this. Waits for the device."""
    if processes.world_size == 1:
        return True
    highest = torch.tensor([number, -number], device=device)
    distributed.all_reduce(highest, op=distributed.ReduceOp.MAX)
    return not highest.sum().item()


@contextmanager
def _end_of_others_told() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, distributed.DistNetworkError) or any(phrase in str(error) for phrase in _OTHER_HAS_ENDED):
            raise EnergyFlowError("another process of this run has ended; see what it says") from error
        raise


def _wait_for_first(is_built: Tensor, group: Any, what: str, max_wait: timedelta) -> None:
    try:
        with _end_of_others_told():
            distributed.broadcast(is_built, src=0, group=group)
    except RuntimeError as error:
        raise EnergyFlowError(
            f"waited {max_wait} for the first process to make {what}; make it before the run ({error})"
        ) from error
    if not is_built.item():
        raise EnergyFlowError(f"the first process could not make {what}; see what it says")
