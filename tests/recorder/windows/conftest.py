"""No window here waits for a fetch to be over, which on a slow machine each may be long enough for."""

from collections.abc import Iterator

import pytest

from efprof.recorder.windows import windows


@pytest.fixture(scope="package", autouse=True)
def _patience() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "MAX_DATA_MS", 600_000.0)
        yield
