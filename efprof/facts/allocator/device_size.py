"""Finds how much memory the device has, which decides where expandable segments grow and which no file tells."""

from typing import Final

from efprof.artifacts.snapshot import Snapshot
from efprof.facts.allocator.history import History, history_of
from efprof.facts.allocator.replay import replay
from efprof.facts.allocator.script import capacity_of

SHARES: Final = (1.0, 1.01, 1.02, 1.05, 1.1, 1.3)
"""Of what the allocator could have at most: the rest is CUDA's context, a hundredth of a large device, and what other
processes have."""

MANY_EVENTS: Final = 200_000
"""From here on fewer sizes are tried: each is a replay, of a million events two seconds."""

FEW_SHARES: Final = 2


def sized_history(snapshot: Snapshot, device: int) -> History:
    """The history of one device, with the size of the device that foretells most of it; raises NotRecorded.

    An expandable segment reserves addresses for an eighth more than the device has. Where memory was short they may
    run out, and a free block at their end counts as large as it can grow: so sizes are tried as long as the replay
    does not tell everything right. Where memory was never short, there are more than enough.
    """
    history = history_of(snapshot, device)
    capacity = capacity_of(history)[0]
    if not history.settings.expandable_segments or capacity is None:
        return history
    best, best_share = None, replay(history).match_share
    for share in SHARES[: FEW_SHARES if len(history.entries) >= MANY_EVENTS else None]:
        if best_share == 1:
            break
        history.device_bytes = int(share * capacity)
        match_share = replay(history).match_share
        if match_share > best_share:
            best, best_share = history.device_bytes, match_share
    history.device_bytes = best
    return history
