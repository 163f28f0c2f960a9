"""Who has what of a device's memory, in words."""

from collections import Counter

from efprof.facts.device.allocation_retries import retried_requests
from efprof.facts.device.device_lines import BEFORE_IT, NO_LINE, OTHER_LINES, label_of
from efprof.facts.device.device_memory import DeviceHistory, DeviceStates
from efprof.facts.run.run import Run
from efprof.model import UnreadableInput
from efprof.units import format_bytes, format_count, format_share

MAX_NAMED, MIN_NAMED = 3, 0.05
"""Of the lines that have most, what has less of all than that is not named in a sentence."""
SAID = {
    NO_LINE: "in threads whose stacks name no line of yours",
    BEFORE_IT: "from before the recording",
}


def who_holds(run: Run) -> str:
    """Who had what when most was in use of the fullest device, in a sentence or two; empty where no snapshot tells."""
    states = run.find(DeviceStates, UnreadableInput)
    devices = states.devices if states else ()
    device = max(devices, key=lambda one: one.peak.composition.reserved_bytes, default=None)
    if device is None:
        return "No memory of a device is in this snapshot." if states else ""
    parts, owners = device.peak.composition, _most_in_use(device)
    used, free = sum(owners.values()), parts.releasable_bytes
    said = SAID | ({} if device.has_history else {BEFORE_IT: "at lines that were not recorded"})
    one_by_one = [(label, size) for label, size in owners.most_common() if label != OTHER_LINES][:MAX_NAMED]
    shares = [(size / max(1, used), said.get(label, f"at {label}")) for label, size in one_by_one]
    named = ", ".join(f"{format_share(share)} {at}" for share, at in shares if share >= MIN_NAMED)
    most = "at most " * device.has_history
    told = f"Device {device.history.device} had {most}{format_bytes(used)} in use{f': {named}' if named else ''}."
    had = f"{format_bytes(parts.reserved_bytes)} reserved"
    when = "" if not device.has_history else " before the recording" if device.peak_index < 0 else " at most"
    cache = f", {format_bytes(free)} of it{' then' * device.has_history} in whole free segments: the cache"
    told += f" It had {had}{when}{cache if free >= MIN_NAMED * parts.reserved_bytes else ''}."
    num = sum(1 for _ in retried_requests(device.history))
    return f"{told} It ran out {format_count(num, 'time')}, and gave its cache back to go on." if num else told


def _most_in_use(device: DeviceHistory) -> Counter[str]:
    """Bytes by whose they are, when most are in use, else at the end."""
    found = Counter[str]()
    if device.has_history:
        curves = device.lines_over_time.curves
        place = max(range(len(curves[0][1])), key=lambda one: sum(sizes[one] for _, sizes in curves)) if curves else 0
        found.update({label: int(sizes[place]) for label, sizes in curves})
    else:
        for owner in device.peak.owners:
            found[label_of(owner.site)] += owner.num_bytes
    return found
