"""How a script under torchrun ends: the ranks print one after another, and leave their process group."""

import itertools
import time

import torch.distributed as dist


def print_by_rank(lines: list[str]) -> None:
    """The first rank prints the lines of all."""
    gathered: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, lines)
    if dist.get_rank() == 0:
        print(*itertools.chain(*gathered), sep="\n")


def leave_group() -> None:
    time.sleep(0.2)  # gloo's threads let go of the last tensors, for which they need Python's lock, which the end holds
    dist.destroy_process_group()
