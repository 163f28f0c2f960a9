"""The allocator's settings, as PYTORCH_CUDA_ALLOC_CONF spells them, and how it rounds requests by them."""

import re
from contextlib import suppress
from dataclasses import replace

from efprof.artifacts.snapshot import Settings
from efprof.model import EfprofError, frozen_dataclass, nearest_to

MIB = 1024**2
NUM_INTERVALS = 16
"""Of roundup_power2_divisions: one for each power of two from 1 MiB to 32 GiB, the last for all above."""

HOST_KEYS = frozenset(
    {
        "backend", "release_lock_on_cudamalloc", "pinned_use_cuda_host_register", "pinned_num_register_threads",
        "pinned_use_background_threads", "pinned_reserve_segment_size_mb", "pinned_free_catch_all",
        "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb", "graph_capture_record_stream_reuse",
        "throw_on_cudamalloc_oom", "expandable_segments_reserve", "expandable_segments_reserve_by_class",
    }
)  # fmt: skip
"""Settings of torch 2.1 to 2.15 that change nothing of where a block of device memory lies, unless the addresses run
out that the last two reserve for an expandable segment: then the replay differs, and is not trusted."""


class BadConfiguration(EfprofError):
    """A configuration string that torch would refuse."""


@frozen_dataclass
class AllocatorSettings:
    """Sizes in bytes; None where there is no limit.

    `divisions` holds one number per interval of sizes; 0 and 1 leave the rounding as it is. Garbage is collected only
    where `memory_fraction` is set as well.
    """

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    large_segment_bytes: int = 20 * MIB
    max_non_split_rounding_bytes: int | None = None
    divisions: tuple[int, ...] = (0,) * NUM_INTERVALS
    garbage_collection_threshold: float = 0.0
    memory_fraction: float | None = None

    @property
    def oversize_slack_bytes(self) -> int:
        """By how much a block may be larger than a request that is too large to split for."""
        rounding = self.max_non_split_rounding_bytes
        return self.large_segment_bytes if rounding is None else rounding


def in_effect(settings: AllocatorSettings) -> AllocatorSettings:
    """Without what does nothing: a threshold for garbage where no fraction limits the memory."""
    return settings if settings.memory_fraction else replace(settings, garbage_collection_threshold=0.0)


def recorded_settings(recorded: Settings | None, *, is_expandable: bool) -> AllocatorSettings:
    """What a snapshot says; `is_expandable` tells of its segments, for files that say nothing.

    What was set after the start comes after what the configuration's text says: torch notes both.
    """
    if recorded is None:
        return AllocatorSettings(expandable_segments=is_expandable)
    try:
        parsed = parse_configuration(recorded.configuration)
    except BadConfiguration:
        parsed = AllocatorSettings()
    by_interval = {int(key): value for key, value in recorded.roundup_power2_divisions.items() if key.isdecimal()}
    divisions = tuple(by_interval.get(1 << index, 0) for index in range(NUM_INTERVALS))
    return replace(
        parsed,
        expandable_segments=recorded.expandable_segments,
        max_split_bytes=recorded.max_split_size if 0 <= recorded.max_split_size < 1 << 62 else None,
        divisions=divisions if by_interval else parsed.divisions,
        garbage_collection_threshold=recorded.garbage_collection_threshold,
    )


def parse_configuration(text: str) -> AllocatorSettings:
    """As torch 2.15 reads it (`expandable_segments:True,max_split_size_mb:128`); raises BadConfiguration."""
    # Commas within brackets belong to a value.
    items = re.split(r",(?![^\[]*\])", "".join(text.split()))
    pairs = [item.partition(":") for item in items if item]
    for key, colon, value in pairs:
        if not colon or not value:
            raise BadConfiguration(f"'{key}' has no value; settings are written 'key:value', with commas between them.")
        if key not in KNOWN_KEYS:
            raise BadConfiguration(f"'{key}' is no setting of the allocator; {nearest_to(key, sorted(KNOWN_KEYS))}")
    values = {key: value for key, _, value in pairs}
    if values.get("backend", "native") != "native":
        raise BadConfiguration(
            "backend:cudaMallocAsync is an allocator of CUDA's own, which keeps none of these rules."
        )
    large = _megabytes(values, "large_segment_size_mb", at_least=11) or 20 * MIB
    rounding = values.get("roundup_power2_divisions")
    expandable = values.get("expandable_segments", "False")
    if expandable not in {"True", "False"}:
        raise BadConfiguration(f"expandable_segments must be 'True' or 'False', spelled like that, not '{expandable}'.")
    return AllocatorSettings(
        expandable_segments=expandable == "True",
        max_split_bytes=_megabytes(values, "max_split_size_mb", at_least=large // MIB),
        large_segment_bytes=large,
        max_non_split_rounding_bytes=_megabytes(values, "max_non_split_rounding_mb", at_least=large // MIB),
        divisions=_divisions(rounding) if rounding else (0,) * NUM_INTERVALS,
        garbage_collection_threshold=_share(values, "garbage_collection_threshold") or 0.0,
        memory_fraction=_share(values, "per_process_memory_fraction", may_be_whole=True),
    )


KNOWN_KEYS = HOST_KEYS | {
    "expandable_segments", "max_split_size_mb", "large_segment_size_mb", "max_non_split_rounding_mb",
    "roundup_power2_divisions", "garbage_collection_threshold", "per_process_memory_fraction",
}  # fmt: skip


def _megabytes(values: dict[str, str], key: str, *, at_least: int) -> int | None:
    if key not in values:
        return None
    if not values[key].isdecimal() or int(values[key]) < at_least:
        raise BadConfiguration(f"{key} must be a whole number of MiB, at least {at_least}, not '{values[key]}'.")
    return int(values[key]) * MIB


def _share(values: dict[str, str], key: str, *, may_be_whole: bool = False) -> float | None:
    if key not in values:
        return None
    with suppress(ValueError):
        share = float(values[key])
        if 0 < share < 1 or (may_be_whole and share == 1):
            return share
    raise BadConfiguration(f"{key} must be between 0 and 1, not '{values[key]}'.")


def _divisions(value: str) -> tuple[int, ...]:
    """One number for all intervals, or a list such as `[256:1,512:2,>:8]`; what is below the first gets its number."""
    if not value.startswith("["):
        return (_power_of_two(value, at_least=1),) * NUM_INTERVALS
    if not value.endswith("]"):
        raise BadConfiguration(f"'{value}' has a bracket that is not closed.")
    numbers = [0] * NUM_INTERVALS
    last = -1
    for item in filter(None, value[1:-1].split(",")):
        key, _, number = item.partition(":")
        if key == ">":
            last = max(last, 0)  # torch counts from the first interval, even where it was not named
            numbers[last + 1 :] = [_power_of_two(number)] * (NUM_INTERVALS - last - 1)
            continue
        index = min(NUM_INTERVALS - 1, _power_of_two(key, at_least=1).bit_length() - 1)
        first = 0 if last < 0 else index
        numbers[first : index + 1] = [_power_of_two(number)] * (index + 1 - first)
        last = index
    return tuple(numbers)


def _power_of_two(value: str, *, at_least: int = 0) -> int:
    number = int(value) if value.isdecimal() else -1
    if number < at_least or number & (number - 1):
        raise BadConfiguration(f"roundup_power2_divisions has '{value}', which is no power of two.")
    return number


MIN_BLOCK_BYTES = 512
SMALL_BYTES = 1 * MIB
"""The largest block of a small pool, and the least that is split off in a large one."""

SMALL_SEGMENT_BYTES = 2 * MIB
MIN_LARGE_REQUEST_BYTES = 10 * MIB
"""From here on a segment is as large as the request, in units of LARGE_UNIT_BYTES."""

LARGE_UNIT_BYTES = 2 * MIB


def rounded_bytes(requested: int, settings: AllocatorSettings) -> int:
    """The size of the block that a request needs."""
    if requested < MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    divisions = settings.divisions[min(max(requested.bit_length() - 21, 0), NUM_INTERVALS - 1)]
    if divisions > 1 and requested > MIN_BLOCK_BYTES * divisions:
        floor = 1 << (requested.bit_length() - 1)
        if floor == requested:
            return requested
        step = floor // divisions
        return -(-requested // step) * step
    return -(-requested // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


def is_small(rounded: int) -> bool:
    return rounded <= SMALL_BYTES


def segment_bytes(rounded: int, settings: AllocatorSettings) -> int:
    """What is asked of the driver where no free block serves."""
    if rounded <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded < MIN_LARGE_REQUEST_BYTES:
        return settings.large_segment_bytes
    return -(-rounded // LARGE_UNIT_BYTES) * LARGE_UNIT_BYTES


def page_bytes(settings: AllocatorSettings, *, is_small_pool: bool) -> int:
    """In units of this an expandable segment grows and shrinks."""
    return SMALL_SEGMENT_BYTES if is_small_pool else settings.large_segment_bytes
