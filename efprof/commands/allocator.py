"""`efprof allocator replay|what-if FILE`: does the model know this allocator, and what would other settings reserve.

Of a run that was recorded on a CPU: what would it reserve on a GPU, an estimate.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from efprof.commands import print_json
from efprof.units import format_bytes, format_ms, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from efprof.facts.allocator.replay import Replay
    from efprof.facts.allocator.replay_results import DevicePredictions
    from efprof.facts.allocator.what_if import Trial
    from efprof.facts.gpu_estimate.gpu_estimate import RunEstimate

SIZES = "24GiB or 24G (times 1024^3), 24GB (times 1000^3)"
"""How sizes are written, for the help of every option that takes one."""

FILE = click.argument("file", type=click.Path(path_type=Path))
JSON = click.option("--json", "is_json", is_flag=True, help="Print the figures as JSON.")


def parse_size(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Bytes of a size such as 24GiB; None where there is none. Refuses one that is not above zero."""
    del context, option
    if text is None:
        return None
    try:
        num_bytes = parse_bytes(text)
    except ValueError:
        num_bytes = 0
    if num_bytes <= 0:
        raise click.BadParameter(f"'{text}' is not a size above zero; write one such as 24GiB, 24GB or 512 MiB.")
    return num_bytes


@click.group()
def allocator() -> None:
    """Replay a CUDA allocator snapshot, also under other settings.

    FILE is what torch.cuda.memory._dump_snapshot wrote, or memory-<n>.pickle of a run folder; or a run that was
    recorded on a CPU, by its folder or its name: then what-if estimates what it would reserve on a GPU.
    """


@allocator.command()
@FILE
@JSON
def replay(file: Path, is_json: bool) -> int:
    """Replay the recording, and count the blocks that land at their recorded address.

    Exit code: 0, or 2 where no device of the file can be replayed.
    """
    from efprof.facts.allocator.replay_results import replay_file

    return _answer(file, replay_file(file), render_replay, is_json=is_json)


@allocator.command("what-if")
@FILE
@click.option(
    "--conf",
    "configurations",
    multiple=True,
    metavar="SETTINGS",
    help="Settings to try, as in PYTORCH_CUDA_ALLOC_CONF; can be repeated. Default: those that are worth a try.",
)
@click.option(
    "--device-memory", callback=parse_size, metavar="SIZE", help=f"What the device has for the program: {SIZES}."
)
@JSON
def what_if(file: Path, configurations: tuple[str, ...], device_memory: int | None, is_json: bool) -> int:
    """Predict the most that the program would reserve under other settings.

    Exit code: 0, or 2 where no device of the file can be replayed.
    """
    from efprof.artifacts.foreign import SNAPSHOT_SUFFIXES

    if file.is_dir() or (not file.is_file() and file.suffix not in SNAPSHOT_SUFFIXES):  # a run
        from efprof.artifacts.runs import find_run
        from efprof.facts.gpu_estimate.gpu_estimate import estimate_run, form_of_estimate

        estimate = estimate_run(find_run(str(file)), configurations, capacity=device_memory)
        if is_json:
            print_json(form_of_estimate(estimate))
        else:
            click.echo(render_estimate(estimate))
        return 0
    from efprof.facts.allocator.replay_results import predict_file

    devices = predict_file(file, configurations, capacity=device_memory)
    return _answer(file, devices, render_predictions, is_json=is_json)


def _answer(file: Path, devices: "Sequence[Any]", render: "Callable[[Any], str]", *, is_json: bool) -> int:
    """The exit code: 2 where no device can be replayed, of which the terminal hears on the other stream."""
    from efprof.facts.allocator.replay_results import NotReplayable, form_of_device

    unknown = [device for device in devices if isinstance(device, NotReplayable)]
    if is_json:
        print_json({"file": str(file), "devices": [form_of_device(device) for device in devices]})
    else:
        for device in devices:
            is_known = device not in unknown
            text = render(device) if is_known else f"device {device.device}: not replayable. {device.reason}"
            click.echo(text, err=not is_known)
            if is_known and device.newer:
                click.echo(f"  {device.newer}")
    return 2 if len(unknown) == len(devices) else 0


def render_replay(found: "Replay") -> str:
    return (
        f"device {found.device}: {found.addresses_equal:,} of {found.allocations:,} addresses equal, "
        f"{found.segments_equal:,} of {found.segments:,} segments equal; "
        f"peak reserved {format_bytes(found.peak_reserved_recorded_bytes)} recorded, "
        f"{format_bytes(found.peak_reserved_replayed_bytes)} replayed"
    )


def render_predictions(device: "DevicePredictions") -> str:
    """A table for a device, the best configuration at its end."""
    from efprof.facts.device.device_evidence import COLD, DEFAULT

    rows = [("recorded: " + (device.recorded.configuration or DEFAULT), device.recorded, "")]
    rows += [] if device.recorded_cold is None else [(COLD, device.recorded_cold, "")]
    rows += [(prediction.configuration or DEFAULT, prediction, "") for prediction in device.predictions]
    lines = [
        f"device {device.device}: the model placed {device.match_share:.2%} of the recording as it was; layouts of "
        f"addresses that each setting was tried in: {device.num_layouts}",
        *_table(rows),
    ]
    if device.recorded_cold is not None:
        lines.append(f"  Other settings start cold, with what was in use then: compare them with '{COLD}'.")
    lines.append(f"  {_advice(device)}")
    return "\n".join(lines)


def render_estimate(estimate: "RunEstimate") -> str:
    """What would be reserved on a GPU, what that holds, and why it may be wrong."""
    from efprof.facts.device.device_evidence import DEFAULT

    ends = [f"  fits: {fits}" for fits in estimate.fits] or [""] * len(estimate.predictions)
    lines = [f"An estimate of what this run would reserve on a GPU, from {' and '.join(estimate.windows)} of a CPU:"]
    lines += _table(
        [(one.configuration or DEFAULT, one, end) for one, end in zip(estimate.predictions, ends, strict=True)]
    )
    in_use, parameters, states = map(
        format_bytes, (estimate.peak_allocated_bytes, estimate.parameter_bytes, estimate.optimizer_state_bytes)
    )
    lines.append(f"  At most {in_use} are in use at once, of them {parameters} parameters, {states} optimizer state.")
    if estimate.rest_bytes is None:
        lines.append("  What the process had in use besides is not known, so the band has no true upper end.")
    if estimate.best is not None:
        lines.append(f"  Worth a try first: PYTORCH_CUDA_ALLOC_CONF={estimate.best}")
    return "\n".join([*lines, *(f"  {caveat}" for caveat in estimate.caveats)])


def _table(rows: "Sequence[tuple[str, Trial, str]]") -> "Iterator[str]":
    """A heading, a line for each with its name and what is said at its end, and its warnings below it."""
    width = max(len(name) for name, _, _ in rows)
    is_timed = any(trial.outcome.driver_ms is not None for _, trial, _ in rows)  # on a CPU the driver is never called
    columns = f"driver calls{'    taking' if is_timed else ''}  retries"
    yield f"  {'settings':{width}}  {'peak reserved':>13}  {'band':>21}  {'idle at peak':>12}  {columns}"
    for name, trial, end in rows:
        one, calls = trial.outcome, trial.outcome.calls
        low, high = map(format_bytes, (one.peak_reserved_low_bytes, one.peak_reserved_high_bytes))
        band = low if low == high else f"{low} to {high}"
        peak, idle = map(format_bytes, (one.peak_reserved_bytes, one.stranded_bytes))
        taking = f"  {'?' if one.driver_ms is None else format_ms(one.driver_ms):>8}" if is_timed else ""
        figures = f"{peak:>13}  {band:>21}  {idle:>12}  {calls.num_taken + calls.num_returned:>12,}{taking}"
        figures += f"  {calls.num_retries:>7,}{'  out of memory' if one.is_out_of_memory else ''}"
        yield f"  {name:{width}}  {figures}{end}"
        yield from (f"  {'':{width}}  {warning}" for warning in trial.warnings)


def _advice(device: "DevicePredictions") -> str:
    if device.best is None:
        return "None of them would reserve clearly less than the recorded settings."
    return f"Best: PYTORCH_CUDA_ALLOC_CONF={device.best}" if device.best else "Best: unset PYTORCH_CUDA_ALLOC_CONF."
