"""The traps in PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF: settings that do nothing, or not what they say."""

import difflib
import re
from collections.abc import Iterator, Mapping

CUDA_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
PLAIN_VARIABLE = "PYTORCH_ALLOC_CONF"

Setting = tuple[str, str]
"""Key and value."""

Trap = tuple[str, str]
"""What happens, and what to do."""

Version = tuple[int, int]

DEFAULT_LARGE_SEGMENT_MB = 20

LEAST_LARGE_SEGMENT_MB = 10
"""A large segment has to be longer than the largest request that shares one."""

MOST_REGISTER_THREADS = 128

BOOLEANS = frozenset(
    {
        "expandable_segments",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "pinned_use_background_threads",
        "graph_capture_record_stream_reuse",
        "throw_on_cudamalloc_oom",
        "pinned_free_catch_all",
    }
)

SINCE: Mapping[str, Version] = {
    "graph_capture_record_stream_reuse": (2, 9),
    "per_process_memory_fraction": (2, 10),
    "pinned_reserve_segment_size_mb": (2, 10),
    "large_segment_size_mb": (2, 11),
    "throw_on_cudamalloc_oom": (2, 12),
    "pinned_free_catch_all": (2, 12),
    "pinned_max_round_threshold_mb": (2, 13),
    "pinned_max_cached_size_mb": (2, 13),
}
"""The first release of torch that knows a key; the others are older than any that efprof runs with."""

KNOWN = BOOLEANS | set(SINCE) | {
    "backend",
    "garbage_collection_threshold",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
    "pinned_num_register_threads",
    "roundup_bypass_threshold_mb",
    "roundup_power2_divisions",
}  # fmt: skip


def settings_in_effect(environment: Mapping[str, str], version: Version) -> list[Setting]:
    """The settings that the CUDA allocator of this torch reads from the environment, in their order."""
    text = environment.get(CUDA_VARIABLE)
    if text is None and version >= (2, 10):
        text = environment.get(PLAIN_VARIABLE)
    return parse(text or "")


def parse(text: str) -> list[Setting]:
    """`key:value,key:[a:1,b:2]` at the commas outside of brackets; a key without a value has an empty one."""
    words = [word.strip() for word in re.split(r",(?![^\[]*\])", text)]
    pairs = [word.partition(":") for word in words if word]
    return [(key.strip(), value.strip()) for key, _, value in pairs]


def find_traps(environment: Mapping[str, str], version: Version) -> Iterator[Trap]:
    """Each trap that this environment walks into with this release of torch."""
    yield from _of_variables(environment, version)
    settings = settings_in_effect(environment, version)
    if not settings:  # what is ignored is told above, and its values are read all the same once it is moved
        settings = parse(environment.get(PLAIN_VARIABLE, ""))
    for key, value in settings:
        yield from _of_key(key, version)
        yield from _of_value(key, value)
    yield from _of_sizes(dict(settings))
    yield from _of_combination(dict(settings), version)


def _of_variables(environment: Mapping[str, str], version: Version) -> Iterator[Trap]:
    cuda, plain = environment.get(CUDA_VARIABLE), environment.get(PLAIN_VARIABLE)
    release = ".".join(map(str, version))
    if cuda is not None and plain is not None and parse(cuda) != parse(plain):
        yield f"{PLAIN_VARIABLE} does nothing, since {CUDA_VARIABLE} is set too and wins.", f"Unset {PLAIN_VARIABLE}."
    elif cuda is None and plain is not None and version < (2, 10):
        knows = "asks for it, and its CUDA allocator does not read it" if version == (2, 9) else "does not know it"
        yield f"{PLAIN_VARIABLE} does nothing: torch {release} {knows}.", f"Set {CUDA_VARIABLE} instead."


def _of_key(key: str, version: Version) -> Iterator[Trap]:
    release, since = ".".join(map(str, version)), SINCE.get(key, (0, 0))
    if key not in KNOWN:
        near = difflib.get_close_matches(key, KNOWN, n=1)
        advice = f"Write '{near[0]}'." if near else "Take it out."
        named, equals, value = key.partition("=")
        if equals and named in KNOWN:
            advice = f"Write '{named}:{value}'."
        yield f"torch {release} knows no setting '{key}': a CUDA build refuses it, a CPU build passes it over.", advice
    elif version < since:
        newer = ".".join(map(str, since))
        yield f"'{key}' came with torch {newer}, and this is {release}.", f"Take it out, or install torch {newer}."


def _of_value(key: str, value: str) -> Iterator[Trap]:
    if key in BOOLEANS and value not in ("True", "False"):
        right = value.capitalize() if value.capitalize() in ("True", "False") else "True"
        yield f"'{key}:{value}' is refused: torch reads True and False, spelled so.", f"Write '{key}:{right}'."
    elif key.endswith("_mb") and _number(value) is None:
        yield f"'{key}:{value}' is refused: it takes a number of MiB.", f"Write a number, such as '{key}:128'."
    elif key == "garbage_collection_threshold" and not 0 < (_number(value) or 0) < 1:
        yield f"'{key}:{value}' is refused: it takes a share between 0 and 1.", f"Write '{key}:0.8', or take it out."
    elif key == "per_process_memory_fraction" and not 0 < (_number(value) or 0) <= 1:
        yield f"'{key}:{value}' is refused: it takes a share of the device.", f"Write '{key}:0.9', or take it out."
    elif key == "pinned_num_register_threads" and not _is_power_of_two(value, MOST_REGISTER_THREADS):
        yield f"'{key}:{value}' is refused: it takes a power of two up to {MOST_REGISTER_THREADS}.", f"Write '{key}:8'."
    elif key == "roundup_power2_divisions":
        yield from _of_divisions(key, value)


def _of_divisions(key: str, value: str) -> Iterator[Trap]:
    """One number for all sizes, or a list of those that begin at a size in MiB."""
    if not value.startswith("["):
        if not _is_power_of_two(value):
            yield f"'{key}:{value}' is refused: it takes powers of two.", f"Write '{key}:8', or take it out."
        return
    for entry in value.strip("[]").split(","):
        size, _, divisions = entry.partition(":")
        is_size = size.strip() == ">" or _is_power_of_two(size)
        if not is_size or not (divisions.strip() == "0" or _is_power_of_two(divisions)):
            yield (
                f"'{entry.strip()}' in '{key}' is refused: sizes in MiB and divisions are powers of two.",
                f"Write it as in '{key}:[256:1,512:2,>:8]'.",
            )


def _of_sizes(settings: Mapping[str, str]) -> Iterator[Trap]:
    """Of MiB values that are numbers; the others are told of one by one."""
    large = _number(settings.get("large_segment_size_mb", "")) or DEFAULT_LARGE_SEGMENT_MB
    if large <= LEAST_LARGE_SEGMENT_MB:
        yield (
            f"'large_segment_size_mb:{large:g}' is refused: it has to be more than {LEAST_LARGE_SEGMENT_MB}.",
            f"Write {DEFAULT_LARGE_SEGMENT_MB} or more, or take it out.",
        )
    for key in ("max_split_size_mb", "max_non_split_rounding_mb"):
        size = _number(settings.get(key, ""))
        if size is not None and size < large:
            yield (
                f"'{key}:{size:g}' is refused: it may not be below the large segments' {large:g} MiB.",
                f"Write '{key}:{large:g}' or more, or take it out.",
            )


def _of_combination(settings: Mapping[str, str], version: Version) -> Iterator[Trap]:
    if settings.get("backend") == "cudaMallocAsync" and len(settings) > 1:
        ignored = ", ".join(key for key in settings if key != "backend")
        yield f"The allocator cudaMallocAsync ignores {ignored}.", "Take out 'backend', or the others."
    if settings.get("expandable_segments") == "True" and "max_split_size_mb" in settings:
        yield (
            "'max_split_size_mb' keeps small requests out of the one large free block that expandable segments grow, "
            "so memory is mapped anew although gigabytes are free.",
            "Take out 'max_split_size_mb'.",
        )
    if "garbage_collection_threshold" in settings and not _caps_memory(settings, version):
        yield (
            "'garbage_collection_threshold' does nothing unless the program caps its memory by "
            "torch.cuda.set_per_process_memory_fraction with a share below 1.",
            "Add 'per_process_memory_fraction:0.95'." if version >= SINCE["per_process_memory_fraction"]
            else "Call that function before the model is built, or take the setting out.",
        )  # fmt: skip


def _caps_memory(settings: Mapping[str, str], version: Version) -> bool:
    fraction = _number(settings.get("per_process_memory_fraction", ""))
    return version >= SINCE["per_process_memory_fraction"] and fraction is not None and fraction < 1


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+(\.\d*)?|\.\d+", text.strip()) else None


def _is_power_of_two(text: str, most: int | None = None) -> bool:
    number = int(text) if text.strip().isdecimal() else 0
    return number > 0 and number & (number - 1) == 0 and (most is None or number <= most)
