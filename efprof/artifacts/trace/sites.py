"""sites-<n>.parquet: the exact line of every call made in the user's code in a window, beside its trace."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from efprof.artifacts.trace.columns import Trace
from efprof.artifacts.trace.read import read_trace
from efprof.model import UnreadableInput

SITE_COLUMNS = ("start_ns", "site")


def read_window(path: Path, *, num_processes: int | None = None) -> Trace:
    """The trace of a window with the call sites that lie beside it; raises UnreadableInput.

    efprof 0.2.0 wrote them into the trace, as an argument of its calls.
    """
    trace = read_trace(path, num_processes=num_processes)
    sites = path.with_name(path.name.replace("trace-", "sites-").removesuffix(".json.gz") + ".parquet")
    return _with_sites(trace, sites) if sites.exists() else trace


def _with_sites(trace: Trace, path: Path) -> Trace:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            table = file.read(columns=list(SITE_COLUMNS))
        starts, sites = (table.column(name).to_pylist() for name in SITE_COLUMNS)
    except (OSError, KeyError, pyarrow.ArrowException):
        raise UnreadableInput(f"{path} is not the call sites of a window; record the run again.") from None
    texts = {text: code for code, text in enumerate(trace.texts)}
    by_start = {start: texts.setdefault(site, len(texts)) for start, site in zip(starts, sites, strict=True)}
    calls = np.flatnonzero(trace.is_of("python_function"))
    codes = np.array([by_start.get(start, -1) for start in trace.start_ns[calls].tolist()], np.int32)
    sparse = {**trace.sparse, "call_site": (calls[codes >= 0].astype(np.int32), codes[codes >= 0])}
    return replace(trace, texts=list(texts), sparse=sparse)
