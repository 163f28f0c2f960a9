"""A CUDA snapshot with as many events as wanted: `python -m benchmarks.memory.made_snapshots FILE --events 1000000`.

Our own model of the allocator serves what a made-up training asks for, and each event is written down as torch 2.13
does it. As in recordings of real programs, an allocation has a list of frames, which the segment shares that it
needed, both events of a free share another, and all lists share their frames.
"""

import pickle
import random
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

import click

from benchmarks.made_training import Place, training
from efprof.artifacts.snapshot import DEFAULT_POOL
from efprof.facts.allocator.blocks import Block
from efprof.facts.allocator.caching_allocator import CachingAllocator
from efprof.facts.allocator.settings import MIB, NUM_INTERVALS, AllocatorSettings

Fields = dict[str, object]
"""Of an event, a block or a segment, as torch names them."""

Frames = list[Fields]

PICKLE_PROTOCOL: Final = 4
"""As the recorder writes it."""

DEPTHS: Final = (10, 30)
"""The fewest and most frames of a stack."""

FIRST_ADDRESS: Final = 0x7F00_0000_0000
FIRST_US: Final = 1_780_000_000_000_000
EVENT_US: Final = 7
"""From one event to the next."""

ALIGNMENT_BYTES: Final = 2 * MIB
"""Of what the driver gives."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--events", type=click.IntRange(min=1), default=1_000_000, show_default=True)
def main(file: Path, events: int) -> None:
    """Write a snapshot with so many events, or one more, to FILE."""
    with file.open("wb") as opened:
        pickle.dump(made_snapshot(events), opened, protocol=PICKLE_PROTOCOL)


def made_snapshot(num_events: int) -> Fields:
    """What `torch.cuda.memory._snapshot()` would return: one device, recorded from before the model was built."""
    recorder = _Recorder()
    for place, tensor, num_bytes in training():
        if len(recorder.events) >= num_events:
            break
        if num_bytes:
            recorder.allocate(tensor, num_bytes, list(_stack(place)))
        else:
            recorder.free(tensor, list(_stack(place)))
    return {
        "segments": recorder.segments(),
        "device_traces": [recorder.events],
        "allocator_settings": _settings(),
        "external_annotations": [],
    }


class _Recorder:
    """Serves requests, and writes each event down."""

    def __init__(self) -> None:
        self.events: list[Fields] = []
        self._allocator = CachingAllocator(AllocatorSettings(), self._new_range)
        self._allocator.on_growth = self._note_segment
        self._next_address = FIRST_ADDRESS
        self._frames: Frames = []
        """Of the request that is being served."""
        self._live: dict[str, tuple[Block, Frames]] = {}

    def allocate(self, tensor: str, num_bytes: int, frames: Frames) -> None:
        self._frames = frames
        block = self._allocator.malloc(num_bytes, stream=0)
        assert block is not None, "a device without a limit serves every request"
        self._live[tensor] = block, frames
        self._note("alloc", block.address, num_bytes, frames)

    def free(self, tensor: str, frames: Frames) -> None:
        block, _ = self._live.pop(tensor)
        for action in ("free_requested", "free_completed"):
            self._note(action, block.address, block.requested, frames)
        self._allocator.free(block)

    def segments(self) -> list[Fields]:
        """As they are now, by address."""
        frames = {block.address: frames for block, frames in self._live.values()}
        blocks = [block for block, _ in self._live.values()]
        blocks += [block for pool in self._allocator.pools for block in pool.free_blocks()]
        blocks.sort(key=attrgetter("address"))
        return [_segment(list(group), frames) for _, group in groupby(blocks, attrgetter("range.address"))]

    def _new_range(self, num_bytes: int) -> int:
        address = self._next_address
        self._next_address += -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return address

    def _note_segment(self, address: int, num_bytes: int) -> None:
        self._note("segment_alloc", address, num_bytes, self._frames)

    def _note(self, action: str, address: int, num_bytes: int, frames: Frames) -> None:
        self.events.append(
            {
                "action": action,
                "addr": address,
                "size": num_bytes,
                "stream": 0,
                "time_us": FIRST_US + EVENT_US * len(self.events),
                "compile_context": "N/A",
                "user_metadata": "",
                "pool_id": (*DEFAULT_POOL,),  # a new one: torch shares none
                "frames": frames,
            }
        )


def _segment(blocks: list[Block], frames: dict[int, Frames]) -> Fields:
    first, used = blocks[0], [block for block in blocks if block.is_allocated]
    used_bytes = sum(block.size for block in used)
    return {
        "device": 0,
        "address": first.range.address,
        "total_size": sum(block.size for block in blocks),
        "allocated_size": used_bytes,
        "active_size": used_bytes,
        "requested_size": sum(block.requested for block in used),
        "stream": first.stream,
        "segment_type": "small" if first.pool.is_small else "large",
        "segment_pool_id": DEFAULT_POOL,
        "is_expandable": False,
        "frames": [],
        "blocks": [_block(block, frames.get(block.address, [])) for block in blocks],
    }


def _block(block: Block, frames: Frames) -> Fields:
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested,
        "state": "active_allocated" if block.is_allocated else "inactive",
        "frames": frames if block.is_allocated else [],
    }


def _settings() -> Fields:
    return {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": False,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "graph_capture_record_stream_reuse": False,
        "roundup_power2_divisions": {str(1 << index): 0 for index in range(NUM_INTERVALS)},
    }


@cache
def _stack(place: Place) -> tuple[Fields, ...]:
    """Innermost first: the operation, the layers of modules around it, and the loop."""
    numbers = random.Random(f"{place}")
    module = f"/home/user/project/model/layer_{place.layer}.py"
    inner = [_frame(module, numbers.randint(1, 400), place.operation)]
    outer = [
        _frame("/home/user/project/train.py", 212, place.phase),
        _frame("/home/user/project/train.py", 301, "main"),
    ]
    calls = [_frame(TORCH_MODULE, 1784, "_call_impl"), _frame(TORCH_MODULE, 1773, "_wrapped_call_impl")]
    between = numbers.randint(*DEPTHS) - len(inner) - len(outer)
    forward = [_frame(module, 20 + depth, "forward") for depth in range(-(-between // 3))]
    return tuple(inner + [frame for one in forward for frame in (one, *calls)][:between] + outer)


TORCH_MODULE: Final = "/home/user/project/.venv/lib/python3.12/site-packages/torch/nn/modules/module.py"


@cache
def _frame(filename: str, line: int, name: str) -> Fields:
    return {"name": name, "filename": filename, "line": line}


if __name__ == "__main__":
    main()
