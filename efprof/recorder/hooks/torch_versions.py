"""Which releases of torch efprof takes, and what differs between them. It does not import torch."""

import re
from collections.abc import Mapping
from types import ModuleType

Version = tuple[int, int]

OLDEST: Version = (2, 7)
NEWEST: Version = (2, 15)
"""The newest that the tests were run under; `make versions` takes what pip picks."""

ACCELERATOR_MEMORY: Version = (2, 9)
"""From here on `torch.accelerator` empties the cache and resets the peak, as `torch.cuda` does."""

PRECISION_BY_NAME: Version = (2, 9)
"""From here on the precision of float32 products has a name, and flags of TF32 are told to be deprecated."""

PLAIN_VARIABLE_WORKS: Version = (2, 10)

SHORTER_HISTORY: Version = (2, 11)
"""From here on the allocator's history may skip kinds of events, and a list of segments may come without it."""

CUDA_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
PLAIN_VARIABLE = "PYTORCH_ALLOC_CONF"


def version_of(torch: ModuleType) -> Version:
    major, minor = re.findall(r"\d+", str(torch.__version__))[:2]
    return int(major), int(minor)


def capture_ending(graph: type) -> str:
    """The method at whose call a capture is over: the first of the two that `capture_end` makes since torch 2.14."""
    return "capture_end_pre" if hasattr(graph, "capture_end_pre") else "capture_end"


def name_of(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def why_untested(torch: ModuleType) -> str | None:
    """A sentence about a torch out of the range; None within it."""
    if OLDEST <= version_of(torch) <= NEWEST:
        return None
    tested = f"{name_of(OLDEST)} to {name_of(NEWEST)}"
    return f"efprof was tested with torch {tested}, not with {torch.__version__}: what does not work is left out."


def environment_settings(environment: Mapping[str, str], version: Version) -> str:
    """What the CUDA allocator of this torch reads from the environment: of two variables the older one wins."""
    text = environment.get(CUDA_VARIABLE)
    if text is None and version >= PLAIN_VARIABLE_WORKS:
        text = environment.get(PLAIN_VARIABLE)
    return text or ""


def allocator_settings(torch: ModuleType, environment: Mapping[str, str]) -> str:
    """With what was set at run time, where torch tells that; older ones have only the environment."""
    read = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
    return str(read()) if read is not None else environment_settings(environment, version_of(torch))
