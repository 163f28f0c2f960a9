"""What lay on the device when memory ran out, the lines likely behind it, and what is shown of it."""

from collections import Counter, defaultdict
from typing import Self

from efprof.artifacts.events import DeviceOutOfMemory
from efprof.artifacts.snapshot import Entry, Snapshot, read_snapshot
from efprof.facts.allocator.history import history_before
from efprof.facts.allocator.settings import SMALL_BYTES, SMALL_SEGMENT_BYTES
from efprof.facts.device.device_evidence import (
    composition_numbers,
    device_use_evidence,
    how_replay_is_known,
    owner_map,
    reserved_series,
    segment_map,
    trial_bars,
)
from efprof.facts.device.device_memory import DeviceHistory, Failure, UserLines, limit_bytes_of, recorded_devices
from efprof.facts.peak.peak_composition import PeakComposition, most_by_line, peak_bars
from efprof.facts.run.run import Run
from efprof.facts.run.run_limits import MemoryFailure, RunLimits
from efprof.facts.source.sources import line_at, place_of, split_site
from efprof.model import (
    Evidence,
    Narrative,
    NotRecorded,
    Numbers,
    Table,
    ThinEvidence,
    frozen_dataclass,
)
from efprof.units import format_bytes, format_share

SNAPSHOT = "memory-out-of-memory.pickle"

MAX_ROWS = 10
MAX_NAMED = 3


@frozen_dataclass
class FailureState:
    """The device, whose history is the failed request alone, and what is in use by size, most bytes first."""

    device: DeviceHistory
    sizes: Table

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where no snapshot was taken when memory ran out, UnreadableInput where it is spoilt."""
        failure = run.get(MemoryFailure)
        path = failure.rank_folder / SNAPSHOT
        if not path.exists():
            raise NotRecorded(f"{SNAPSHOT} is missing; record the run on a CUDA device.")
        snapshot, told, requested = read_snapshot(path), failure.device_event, failure.requested_bytes or 0
        if told.requested_bytes != requested:  # it is of another failure
            told = DeviceOutOfMemory(at_ns=0, step=0)
        reserved = Counter[int]()
        for segment in snapshot.segments:
            reserved[segment.device] += segment.total_size
        number = max(reserved, key=reserved.__getitem__, default=0) if told.device is None else told.device
        size = SMALL_BYTES if requested == SMALL_SEGMENT_BYTES else requested
        place = zip(("filename", "line", "name"), split_site(failure.site), strict=True) if failure.site else ()
        request = Entry(action="oom", size=size, device_free=told.free_bytes, frames=[dict(place)])
        history, lines = history_before(snapshot, number, [request]), UserLines(run.run_file.working_folder)
        name = f"{failure.rank_folder.name}/{SNAPSHOT}" if len(run.rank_folders) > 1 else SNAPSHOT
        device = DeviceHistory(name, history, lines, limit_bytes=limit_bytes_of(run, number))
        return cls(device=device, sizes=_table_of_sizes(run, snapshot, device))


def blamed_site(run: Run, device: DeviceHistory, failure: Failure) -> str:
    """Who asked; a backward pass asks in a thread without Python, and its error comes out of the line that called it.

    Where that is not known either, the line that had most of the device; raises ThinEvidence where no line is known.
    """
    error = run.find(MemoryFailure)
    is_this_one = error is not None and device.rank in ("", error.rank_folder.name)
    site = failure.site or (error.site if error and is_this_one else None) or failure.most_held_site
    if site is None:
        raise ThinEvidence(
            f"a request for {format_bytes(failure.requested_bytes)} failed, but no stack of device "
            f"{device.history.device} in {device.file} names a line of yours; record with stacks."
        )
    return site


def what_failed_on(device: DeviceHistory, failure: Failure) -> str:
    """In one sentence: what was asked for, and what there was."""
    parts = failure.instant.composition
    return (
        f"Device {device.history.device} could not give {format_bytes(failure.requested_bytes)}: of "
        f"{format_bytes(parts.reserved_bytes)} reserved {format_bytes(parts.free_bytes)} were free."
    )


def why_it_failed_on(failure: Failure) -> str:
    """Why what was free did not serve, and who had the rest."""
    parts = failure.instant.composition
    driver = failure.device_free_bytes
    piece = format_bytes(max(failure.piece_bytes, default=0))
    why = "Memory was fragmented" if failure.is_fragmentation else "Memory was short, not fragmented"
    elsewhere = parts.free_bytes - failure.usable_bytes
    others = f" {format_bytes(elsewhere)} were for other sizes, streams or pools." if elsewhere else ""
    others += "" if driver is None else f" The driver had {format_bytes(driver)}."
    most = next((owner for owner in failure.instant.owners if owner.site), None)
    held = ""
    if most is not None and most.site:
        share = format_share(most.num_bytes / max(1, parts.reserved_bytes))
        held = f" {place_of(most.site)} held {format_bytes(most.num_bytes)} ({share})."
    return f"{why}: the largest free piece was {piece}.{others}{held}"


def why_no_setting_helps(device: DeviceHistory, failure: Failure) -> str:
    """And what must change at the line that holds most."""
    tried = (
        "No allocator setting that was tried would have served the request"
        if device.trials
        else "No history tells whether a setting of the allocator would have served it"
    )
    most = failure.instant.owners[0].site if failure.instant.owners else None
    where = f" at {place_of(most)}, which holds most" if most else ""
    if failure.is_fragmentation:
        return f"{tried}: keep less{where}, so that larger pieces are free."
    missing = failure.requested_bytes - (failure.device_free_bytes or 0) - failure.usable_bytes
    return f"{tried}: {format_bytes(missing)} were missing. Keep less{where}."


def evidence_of_device(run: Run, device: DeviceHistory, failure: Failure) -> tuple[Evidence, ...]:
    most_held = line_at(run, failure.most_held_site) if failure.most_held_site else None
    return (
        reserved_series(device, ((float(failure.instant.index + 1), "the failed request"),), most_held),
        *_what_lay_there(run, device, failure),
        trial_bars(device),
        how_replay_is_known(device),
    )


def evidence_of_state(run: Run, state: FailureState, failure: MemoryFailure) -> tuple[Evidence, ...]:
    """The same where no history was kept, and by size which lines may have asked for what no stack tells of."""
    on_device, told = state.device.failure, failure.device_event
    return (
        *(() if on_device is None else _what_lay_there(run, state.device, on_device)),
        state.sizes,
        Narrative.of(
            "The snapshot has no history of the allocator. It tells of every block its place and size, and its line if "
            "it was asked for in a window; equal sizes in a window are a hint and no proof. 'efprof record "
            "--memory-ring' keeps a history at all times: then all blocks but those of backward passes have their "
            "lines, and other settings of the allocator can be tried.",
            "It was taken when the request failed, or when its error had ended the program: then what the failing call "
            f"itself had freed is missing. Requests that failed in this run: {told.num_failed:,}; refused by "
            f"`throw_on_cudamalloc_oom` before the driver was asked: {told.num_rejected:,}.",
        ),
    )


def what_failed(failure: MemoryFailure) -> str:
    """In one sentence: the request, when it came, what was in use."""
    request = "" if failure.requested_bytes is None else f" for {format_bytes(failure.requested_bytes)}"
    stage = f"in the {failure.stage} stage of" if failure.stage and failure.stage != "other" else "in"
    used = "" if failure.in_use_bytes is None else f", with {format_bytes(failure.in_use_bytes)} in use"
    if failure.library is not None:
        return f"{failure.library} could not get memory {stage} step {failure.step:,}{used} by tensors."
    for_what = "" if failure.is_for_tensor else ", not for a tensor,"
    return f"A request{request}{for_what} failed {stage} step {failure.step:,}{used}."


def failure_evidence(run: Run, failure: MemoryFailure, kept_bytes: int | None) -> tuple[Evidence, ...]:
    """The numbers there are; what is alive at the highest recorded instant, where a window shows one; how we know."""
    peak, limits = _peak_of(run, failure), run.find(RunLimits)
    numbers = [
        ("the request that failed", failure.requested_bytes),
        ("in use when it failed", failure.in_use_bytes),
        ("of it kept from step to step", kept_bytes),
    ]
    if limits is not None and limits.total_bytes:
        numbers.append((f"what {limits.name} has", limits.total_bytes))
    return (
        Numbers.of("Memory when the request failed", *((label, value, "bytes") for label, value in numbers)),
        *device_use_evidence(run),
        *(() if peak is None else (peak_bars(run, peak, None),)),
        Narrative.of(
            "The line is the last one of yours in the traceback, or, where that names none, the one that made most of "
            "what is alive: it is often not the one that took the memory.",
            "No snapshot shows the instant of the failure, so what was in use is the reading taken when the error left "
            "the program. What is alive is of the highest instant of a window, in a step that went well.",
        ),
    )


def most_alive_site(run: Run, failure: MemoryFailure) -> str | None:
    """The user's line that made most of what is alive at the highest recorded instant."""
    peak = _peak_of(run, failure)
    lines = [] if peak is None else most_by_line(run, peak)
    return next((site for (site, _), _ in lines if site is not None), None)


def _table_of_sizes(run: Run, snapshot: Snapshot, device: DeviceHistory) -> Table:
    """Blocks in use, by how much was asked for, and the lines that the rank's last window saw ask for as much."""
    found = defaultdict[int, list[int]](list)
    for segment in snapshot.segments:
        for block in segment.blocks:
            if segment.device == device.history.device and block.is_active:
                found[block.requested_size or block.size].append(block.size)
    lines = defaultdict[int, Counter[str]](Counter)
    for one in recorded_devices(run):
        if (one.history.device, one.rank) == (device.history.device, device.rank):
            for entry in one.history.entries:
                site = one.lines.site(entry.frames) if entry.action == "alloc" else None
                if site is not None:
                    lines[entry.size][place_of(site)] += 1
    named = {each: ", ".join(place for place, _ in lines[each].most_common(MAX_NAMED)) or "none" for each in found}
    rows = [(float(each), float(len(sizes)), float(sum(sizes)), named[each]) for each, sizes in found.items()]
    columns = {"each": "bytes", "blocks": "count", "together": "bytes", "lines that asked for as much in a window": ""}
    return Table.of("What is in use, by size", columns, sorted(rows, key=lambda row: -row[2])[:MAX_ROWS])


def _what_lay_there(run: Run, device: DeviceHistory, failure: Failure) -> tuple[Evidence, ...]:
    instant, most = failure.instant, failure.most_held_site
    most_held = line_at(run, most) if most else None
    return (
        owner_map(instant, most_held, "What filled the device"),
        composition_numbers(instant, "Reserved memory when the request failed"),
        *device_use_evidence(run),
        segment_map(device, instant, "when the request failed", most_held, "Where it lay"),
    )


def _peak_of(run: Run, failure: MemoryFailure) -> PeakComposition | None:
    """None without a window, and for another rank than the first, whose windows alone are looked at."""
    return run.find(PeakComposition) if failure.rank_folder == run.rank_folder else None


def what_filled(run: Run, failure: MemoryFailure) -> str:
    """What was there before the window's step, and what most of the rest was for; empty where no window shows it."""
    if failure.library is not None and failure.outside_bytes is not None:
        cached, outside = format_bytes(failure.cached_bytes), format_bytes(failure.outside_bytes)
        return f"PyTorch held {cached} more in its cache; {outside} were in use outside its allocator."
    peak = _peak_of(run, failure)
    if peak is None:
        return "No window shows what filled it."
    category, size = peak.largest
    lines = ((owner, held) for owner, held in most_by_line(run, peak) if owner[0] is not None and owner[1] == category)
    (site, _), held = next(lines, ((None, category), 0))
    most = "" if site is None else f", {format_bytes(held)} of them made at {place_of(site)}"
    return (
        f"Of the recorded peak of {format_bytes(peak.peak_bytes)}, {format_bytes(peak.before_bytes)} were there before "
        f"the step. {format_bytes(size)} ({format_share(size / max(1, peak.peak_bytes))}) were {category}{most}."
    )
