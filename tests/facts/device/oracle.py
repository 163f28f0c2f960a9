"""What a snapshot says, reckoned from its pickle alone with plain loops: reports are checked against it.

python -m tests.facts.device.oracle memory.pickle
"""

import json
import pickle
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn


@dataclass(frozen=True)
class Truth:
    """Bytes of the device that has most reserved at the end."""

    reserved_bytes: int
    in_use_bytes: int
    most_in_use_bytes: int
    """By the history, walked backwards from the end."""
    num_flushes: int
    """Stretches of segments given back, one after another, below a call of `empty_cache`."""
    num_failed: int


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise ValueError(f"{module}.{name} is asked for")


def truth_of(path: Path) -> Truth:
    """Raises what the file's reading raises."""
    with path.open("rb") as file:
        taken: Any = _Plain(file).load()
    if isinstance(taken, list):
        taken = {"segments": taken}
    reserved: dict[int, int] = {}
    used: dict[int, int] = {}
    for segment in taken["segments"]:
        device = segment.get("device", 0)
        reserved[device] = reserved.get(device, 0) + segment["total_size"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                used[device] = used.get(device, 0) + (block.get("requested_size") or block["size"])
    device = max(reserved, key=lambda one: reserved[one], default=0)
    traces = taken.get("device_traces", [])
    events = traces[device] if device < len(traces) else []
    now = most = used.get(device, 0)
    for event in reversed(events):
        if event["action"] == "free_completed":
            now += event["size"]
        elif event["action"] == "alloc":
            now -= event["size"]
        most = max(most, now)
    num_flushes, before = 0, ""
    for event in events:
        names = [frame.get("name", "") for frame in event.get("frames") or []]
        is_first = event["action"] == "segment_free" and before != "segment_free"
        num_flushes += is_first and any("empty_cache" in name or "emptyCache" in name for name in names)
        before = event["action"]
    return Truth(
        reserved_bytes=reserved.get(device, 0),
        in_use_bytes=used.get(device, 0),
        most_in_use_bytes=most,
        num_flushes=num_flushes,
        num_failed=sum(event["action"] == "oom" for event in events),
    )


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(json.dumps({"snapshot": argument, **asdict(truth_of(Path(argument)))}, indent=1))
