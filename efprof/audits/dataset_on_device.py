"""A data set that lies on the device while steps use a slice of it."""

from efprof.facts.device.device_dataset import DeviceDataset, DeviceDatasets
from efprof.facts.device.device_evidence import composition_numbers, owner_map
from efprof.facts.run.run import Run
from efprof.facts.source.sources import line_at, place_of
from efprof.model import Examination, Finding, Fix, Gain, Narrative
from efprof.units import format_bytes, format_share


def dataset_on_device(run: Run) -> Examination:
    """Find data sets that were put on the device as a whole.

    ## What it finds
    Lines that put tensors on the device before the first step, of which two steps were seen to read a part each, not
    the same, and to write to none; and which are still there when most is reserved and when the recording ends.

    ## Why it matters
    What waits there to be used takes the memory that a larger batch or model could have, and grows with the data.

    ## Fix
    Keep it on the host in pinned memory, and move each batch when it is its turn.

    ## Predicted gain
    What the line still has at the peak, less two batches: one at work and one on its way.
    """
    datasets = run.get(DeviceDatasets)
    held, unknown = map(format_bytes, (datasets.held_bytes, datasets.unknown_bytes))
    looked_at = f"{held} that stay from before the first step on; {unknown} of them have no stack and cannot be judged"
    return Examination(looked_at=looked_at, findings=tuple(_finding(run, dataset) for dataset in datasets.found))


def _finding(run: Run, dataset: DeviceDataset) -> Finding:
    device, held_bytes = dataset.device, dataset.num_bytes
    blame, reserved = line_at(run, dataset.site), device.peak.composition.reserved_bytes
    return Finding(
        blame=blame,
        category="memory",
        headline="The whole data set lies on the device",
        message=f"{format_bytes(held_bytes)} lie on device {device.history.device} from before the first step to the "
        f"end, {format_share(held_bytes / max(1, reserved))} of the {format_bytes(reserved)} reserved at the peak.",
        why=f"The whole data set is moved there, and {_use_of(dataset)} takes a part at a time.",
        fix=_fix(dataset),
        gain=Gain(
            explanation="the bytes that this line's tensors have at the peak, less two batches of "
            f"{format_bytes(dataset.batch_bytes)}; the time it costs is not known",
            peak_bytes=dataset.saved_bytes,
            of_bytes=reserved,
        ),
        evidence=(
            composition_numbers(device.peak, "Reserved memory at its peak"),
            owner_map(device.peak, blame, "Who has it"),
            Narrative.of(
                f"{device.file} tells what was allocated where, and that it was not given back. In two steps every "
                f"call of torch's functions was looked at: those read {format_bytes(dataset.batch_bytes)} of it per "
                "step, not always the same, and wrote nothing. It is right where the device has memory to spare and "
                "copying would take longer than computing.",
            ),
        ),
    )


def _use_of(dataset: DeviceDataset) -> str:
    return place_of(dataset.use_site) if dataset.use_site else "each step"


def _fix(dataset: DeviceDataset) -> Fix:
    return Fix.by_hand(
        f"Keep it on the host, in pinned memory ('.pin_memory()'), and move what {_use_of(dataset)} takes: "
        "'batch = batch.to(device, non_blocking=True)'. Draw indices on the host, too."
    )
