"""evaluations.jsonl: passes over a loader on which nothing was trained, with their time and memory."""

from pathlib import Path

import msgspec

from efprof.artifacts.lines import read_lines

EVALUATIONS_FILE = "evaluations.jsonl"


class EvaluationMemory(msgspec.Struct, array_like=True, gc=False):
    """Memory once so many batches were evaluated."""

    num_batches: int
    allocated_bytes: int


class EvaluationRecord(msgspec.Struct, kw_only=True):
    """One pass; it begins when its first batch is asked for.

    `after_step` is the last step finished by then, -1 where there was none; `fetch_us` was spent waiting for batches;
    `site` is the line of its loop. `memory` is a sample of the readings, the first from before it, the last from its
    end. `peak_bytes` is the highest of all readings, which lie between batches, or, where `is_peak_exact`, the CUDA
    allocator's own mark, which the evaluation raised.
    """

    after_step: int
    started_ns: int
    total_us: float
    fetch_us: float
    num_batches: int
    site: str | None
    memory: list[EvaluationMemory]
    peak_bytes: int
    is_peak_exact: bool


def read_evaluations(rank_folder: Path) -> list[EvaluationRecord]:
    """All whole lines in order; empty where no DataLoader was gone through without gradients, or nobody looked."""
    path = rank_folder / EVALUATIONS_FILE
    return read_lines(path, EvaluationRecord, "record the run again.")[0] if path.exists() else []
