"""What the message of an error says of memory that ran out: the request, and the library that asked for it."""

import re

REQUEST = re.compile(r"(?:[Tt]ried to allocate|Unable to allocate|Requested +:) (\d+(?:\.\d*)? (?:[KMGTPE]iB|bytes))")

TENSOR = "memory: you tried to allocate"
"""Of torch's CPU allocator, which says "can't allocate" or, on Windows, "not enough"."""

LIBRARIES = {
    "NCCL": re.compile(r"Cuda failure (\d+ )?'out of memory'|Failed to CUDA (c|m)alloc"),
    "cuBLAS": re.compile("CUBLAS_STATUS_ALLOC_FAILED"),
    "cuDNN": re.compile("CUDNN_STATUS_(ALLOC|INTERNAL_ERROR_DEVICE_ALLOCATION)_FAILED"),
    "cuSOLVER": re.compile("CUSOLVER_STATUS_ALLOC_FAILED"),
    "cuSPARSE": re.compile("CUSPARSE_STATUS_ALLOC_FAILED"),
    "cuFFT": re.compile("CUFFT_ALLOC_FAILED"),
    "Triton": re.compile(r"Triton Error \[\w+\]: out of memory"),
    "CUDA": re.compile("error: out of memory"),
}
"""Of libraries that ask the driver, and not torch's allocator: a RuntimeError, or one derived from it."""


def library_in(message: str) -> str | None:
    """Returns the library that says so of itself."""
    return next((name for name, phrase in LIBRARIES.items() if phrase.search(message)), None)
