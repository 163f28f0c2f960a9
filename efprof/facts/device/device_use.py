"""What all processes use of a device beside PyTorch's allocator, as a run's readings tell."""

from efprof.artifacts.readings import DeviceUse, read_device_use
from efprof.facts.run.run import Run
from efprof.model import Evidence, Numbers, Series, SeriesLine


def device_use_evidence(run: Run) -> tuple[Evidence, ...]:
    """The numbers, and the curve where there are several readings; empty where none were made."""
    every = read_device_use(run.rank_folder) if run.rank_folders else []
    if not every:
        return ()
    readings = [reading for reading in every if reading.device == every[-1].device]
    return (_numbers(readings), _series(readings)) if len(readings) > 1 else (_numbers(readings),)


def _numbers(readings: list[DeviceUse]) -> Numbers:
    """The last reading taken apart, and how far the outside has risen."""
    first, last = readings[0], readings[-1]
    numbers = [
        ("in use of the device, by all", last.used_bytes),
        ("reserved by PyTorch", last.reserved_bytes),
        ("outside PyTorch", last.outside_bytes),
    ]
    if last.process_bytes is not None:
        own = max(0, last.process_bytes - last.reserved_bytes)
        others = max(0, last.used_bytes - last.process_bytes)
        numbers.append(("of it this process: CUDA context, NCCL, workspaces of libraries", own))
        numbers.append(("of it other processes", others))
    if last.outside_bytes > first.outside_bytes:
        numbers.append((f"risen since step {first.step:,}", last.outside_bytes - first.outside_bytes))
    return Numbers.of(
        f"In use outside PyTorch's allocator, at step {last.step:,}",
        *((label, float(value), "bytes") for label, value in numbers),
    )


def _series(readings: list[DeviceUse]) -> Series:
    """What PyTorch reserved and what lies outside, one on the other."""
    steps = tuple(float(reading.step) for reading in readings)
    reserved = tuple(float(reading.reserved_bytes) for reading in readings)
    outside = tuple(float(reading.outside_bytes) for reading in readings)
    return Series(
        title=f"Device {readings[0].device} as a whole",
        x_unit="",
        y_label="in use",
        y_unit="bytes",
        lines=(
            SeriesLine(label="reserved by PyTorch", x=steps, y=reserved),
            SeriesLine(label="outside PyTorch", x=steps, y=outside, is_highlighted=True),
        ),
        is_stacked=True,
    )
