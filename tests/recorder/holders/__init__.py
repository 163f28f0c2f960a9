"""Who keeps tensors alive."""

import pytest
from torch._C._autograd import SavedTensor

SAVED_IS_TOLD = pytest.mark.skipif(
    not hasattr(SavedTensor, "data"), reason="needs torch 2.11, which tells what a graph saved without unpacking it"
)
