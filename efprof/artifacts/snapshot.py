"""memory-<n>.pickle and the same file from anywhere: a snapshot of CUDA's caching allocator."""

import copyreg
import pickle
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec

from efprof.artifacts.files import bounded_memory, no_garbage_collection
from efprof.model import UnreadableInput

PoolId = tuple[int, int]
DEFAULT_POOL = (0, 0)
"""Of memory that belongs to no CUDA graph and no `torch.cuda.MemPool`."""

DAMAGED = (
    pickle.UnpicklingError, EOFError, LookupError, ValueError, TypeError, AttributeError, ImportError, ArithmeticError,
    MemoryError, RecursionError, SystemError,
)  # fmt: skip
"""What a pickle raises that is torn, or made of bytes that happen to be operations."""

WHAT_TO_GIVE = "give a file that torch.cuda.memory._dump_snapshot wrote, whole"

FIXED_BYTES = 12 * 1024**2
BYTES_PER_BYTE = 64
"""What reading may take: a snapshot of a million events takes about ten times its own size."""

GROWTH = frozenset({"segment_alloc", "segment_map"})
RELEASE = frozenset({"segment_free", "segment_unmap"})
"""Events of memory that comes from the driver, and goes back to it."""

Bytes = Annotated[int, msgspec.Meta(ge=0)]

Frames = Any
"""A list of mappings (`filename`, `line`, `name`), innermost first, as it came.

Many entries share one: converted one by one they would fill the memory.
"""


class Block(msgspec.Struct, gc=False):
    """A part of a segment; where it is inactive, `requested_size` is that of its last user."""

    size: Bytes
    state: str
    address: int | None = None
    requested_size: int | None = None
    frames: Frames = None
    history: Any = None
    """Of torch 2.0, in place of `frames`: who had it, the last one first."""

    @property
    def is_active(self) -> bool:
        """Whether somebody has it; what waits for another stream to be done is not free yet."""
        return self.state != "inactive"


class Segment(msgspec.Struct):
    """Memory that the allocator has from the driver; of expandable ones, a stretch that is mapped. Sizes in bytes."""

    total_size: Bytes
    blocks: list[Block]
    address: int = 0
    device: int = 0
    stream: int = 0
    segment_type: str = "large"
    segment_pool_id: PoolId = DEFAULT_POOL
    is_expandable: bool = False


class Entry(msgspec.Struct, gc=False):
    """One event of the allocator's history. An `alloc` has the bytes that were asked for, before rounding."""

    action: str
    size: Bytes
    addr: int = 0
    device_free: int | None = None
    stream: int = 0
    time_us: int | None = None
    pool_id: PoolId | None = None
    frames: Frames = None

    @property
    def private_id(self) -> PoolId:
        """The private pool that it is of, as far as the file tells: torch names it since 2.12."""
        return self.pool_id or DEFAULT_POOL


class Settings(msgspec.Struct):
    """How the allocator was configured, as far as torch tells."""

    configuration: str = msgspec.field(default="", name="PYTORCH_CUDA_ALLOC_CONF")
    max_split_size: int = -1
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    roundup_power2_divisions: dict[str, int] = {}


class Snapshot(msgspec.Struct):
    """All devices of one process. `settings` is None in files from before torch 2.3."""

    segments: list[Segment]
    device_traces: list[list[Entry]] = []
    settings: Settings | None = msgspec.field(default=None, name="allocator_settings")


def read_snapshot(path: Path) -> Snapshot:
    """A snapshot of torch 2.0 to 2.13, nothing of which is imported or run; raises UnreadableInput."""
    try:
        num_bytes = path.stat().st_size
        with (
            path.open("rb") as file,
            bounded_memory(FIXED_BYTES + BYTES_PER_BYTE * num_bytes),
            no_garbage_collection(),
        ):
            copyreg.clear_extension_cache()  # what is in it would be given without `find_class` being asked
            taken = _Unpickler(file).load()
            if isinstance(taken, list):  # of torch.cuda.memory_snapshot()
                taken = {"segments": taken}
            snapshot = msgspec.convert(taken, Snapshot, strict=True)
    except OSError as error:
        raise UnreadableInput(f"{path} cannot be read: {error.strerror}; {WHAT_TO_GIVE}.") from None
    except _Forbidden as error:
        raise UnreadableInput(
            f"{path} is no snapshot: its pickle asks for {error}, which a snapshot never does; nothing of it was run."
        ) from None
    except msgspec.ValidationError as error:
        raise UnreadableInput(
            f"{path} is no snapshot of CUDA's allocator: {_printable(str(error))}; {WHAT_TO_GIVE}."
        ) from None
    except DAMAGED as error:
        raise UnreadableInput(f"{path} is no whole pickle ({type(error).__name__}); {WHAT_TO_GIVE}.") from None
    for segment in snapshot.segments:
        address = segment.address
        for block in segment.blocks:
            if block.address is None:  # old files give none: each block follows the one before
                block.address = address
            address += block.size
            match block.history:
                case [{"frames": list(frames)}, *_] if block.is_active:
                    block.frames = frames
            block.history = None
    return snapshot


def _printable(text: str) -> str:
    """One line, whatever a file holds."""
    return text.encode("unicode_escape").decode("ascii")


class _Forbidden(Exception):
    pass


class _Unpickler(pickle.Unpickler):
    """Knows numbers, texts and containers, of which snapshots are made, and refuses everything else."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _Forbidden(_printable(f"{module}.{name}"[:100]))

    def persistent_load(self, _: object) -> NoReturn:
        raise _Forbidden("an object outside of it")
