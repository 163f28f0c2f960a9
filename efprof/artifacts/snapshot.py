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

ACTIONS = GROWTH | RELEASE | {"alloc", "free_requested", "free_completed", "oom", "snapshot", "annotate"}
"""All that torch 2.0 to 2.15 writes. The last two change no memory: a snapshot was taken, and (since 2.14) the program
gave a block that is in use a name.
"""

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
    newer: str = msgspec.field(default="", name="")
    """The end of a sentence about this file, where it has what torch did not write up to 2.15."""


PASSED_OVER: dict[type[msgspec.Struct], str] = {
    Snapshot: "external_annotations host_segments host_traces trace_alloc_overflowed trace_alloc_max_entries",
    Settings: "pinned_num_register_threads release_lock_on_cudamalloc pinned_use_cuda_host_register "
    "graph_capture_record_stream_reuse max_round_threshold max_cached_size",
    Segment: "allocated_size active_size requested_size frames",
    Block: "category",
    Entry: "compile_context user_metadata internal_metadata forward_frames category",
}
"""Fields that are known, and not read: none of them says where a block of a device lies."""


def read_snapshot(path: Path) -> Snapshot:
    """A snapshot of torch 2.0 to 2.15, nothing of which is imported or run; raises UnreadableInput.

    A newer one's history begins behind the last entry of an unknown kind: it is followed from its end.
    """
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
            fields = _unknown_fields(taken)
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
    snapshot.newer = _cut(snapshot.device_traces) or fields
    return snapshot


def _unknown_fields(taken: dict[str, Any]) -> str:
    """Says which neither are read nor are passed over knowingly."""
    segments = taken["segments"]
    found: dict[type[msgspec.Struct], Any] = {
        Snapshot: [taken],
        Settings: [taken.get("allocator_settings") or {}],
        Segment: segments,
        Block: [block for segment in segments for block in segment["blocks"]],
        Entry: [entry for trace in taken.get("device_traces", ()) for entry in trace],
    }
    unknown = set[str]()
    for kind, values in found.items():
        known = {field.encode_name for field in msgspec.structs.fields(kind)}
        unknown |= set[str]().union(*values) - known - set(PASSED_OVER[kind].split())
    return f"has fields of a newer torch, which are not read: {_listed(unknown)}." if unknown else ""


def _cut(traces: list[list[Entry]]) -> str:
    """Leave of each history what comes after its last unknown entry, and say so."""
    unknown = {entry.action for trace in traces for entry in trace} - ACTIONS
    for trace in traces if unknown else ():
        last = max((index for index, entry in enumerate(trace) if entry.action in unknown), default=-1)
        del trace[: last + 1]
    said = f"has entries of a newer torch: {_listed(unknown)}; the replay begins behind the last of them."
    return said if unknown else ""


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(map(_printable, names)))


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
