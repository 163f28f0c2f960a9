"""The `maxlen` that a deque was counted with, as far as it bounds it."""

import contextlib

from efprof.artifacts.holders import Holder
from efprof.facts.holder_lines import bytes_after, bytes_before
from efprof.facts.run import Run
from efprof.facts.run_limits import RunLimits
from efprof.model import NotRecorded


def counted_limit(holder: Holder, run: Run) -> int | None:
    """Up to what it fills up; 0 where it has no limit, or one beyond all memory, and None where that is not known.

    It is not known of what is no deque either, nor where what is in one grows on, and not its length.
    """
    if holder.type != "deque" or holder.max_length is None:
        return None
    if holder.max_length == 0:
        return 0
    num_more = holder.length_after - holder.length_before
    if num_more <= 0:
        return None
    full_bytes = holder.max_length * (bytes_after(holder) - bytes_before(holder)) / num_more
    with contextlib.suppress(NotRecorded):
        if 0 < run.get(RunLimits).total_bytes < full_bytes:
            return 0
    return holder.max_length
