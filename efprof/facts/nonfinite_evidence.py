"""What a non-finite loss shows for itself: the curves, the operands, and how we know."""

from efprof.artifacts.events import SuspectOperation
from efprof.facts.nonfinite import NonFinite
from efprof.facts.nonfinite_cause import NonFiniteCause, is_guess
from efprof.model import Narrative, Number, Numbers, Series, SeriesLine, Table


def loss_series(found: NonFinite) -> Series:
    """The loss of every step that has one, with the first bad step marked; NaN leaves a gap."""
    assert found.first_step is not None
    finite = [(step, loss) for step, loss in found.losses if abs(loss) < float("inf")]
    return Series(
        title="Loss until it was lost",
        x_label="step",
        x_unit="count",
        y_label="loss",
        y_unit="",
        lines=(
            SeriesLine(
                label="loss",
                x=tuple(float(step) for step, _ in finite),
                y=tuple(loss for _, loss in finite),
                is_highlighted=True,
            ),
        ),
        marks=((float(found.first_step), f"first {found.value}"),),
    )


def loss_numbers(found: NonFinite) -> Numbers:
    """The first bad step, how many followed, and the gradient norm before it."""
    assert found.first_step is not None
    numbers = [
        Number(label="first bad step", value=found.first_step, unit="count"),
        Number(label="bad steps from there on", value=found.num_bad, unit="count"),
        Number(label="steps from there on", value=found.num_from_first, unit="count"),
    ]
    if found.norms:
        numbers.append(Number(label="gradient norm of the last good step", value=found.norms[-1], unit=""))
    if found.usual_norm is not None:
        numbers.append(Number(label="usual gradient norm before", value=found.usual_norm, unit=""))
    return Numbers(title="When and how much", numbers=tuple(numbers))


def suspect_table(found: NonFinite) -> tuple[Table, ...]:
    """The operations in which the value may have been born, in the order they ran; none where none was found."""
    if not found.suspects:
        return ()
    return (
        Table(
            title="Operations with finite input and a result that is not, in the order they ran",
            columns=("autograd node", "what is wrong", "bad", "elements", "dtype"),
            units=("", "", "count", "count", ""),
            rows=tuple((one.node, one.operand, one.num_bad, one.num_elements, one.dtype) for one in found.suspects),
        ),
    )


def how_nonfinite_is_known(found: NonFinite, cause: NonFiniteCause) -> Narrative:
    """What it means, how we know, and when it is wrong."""
    return Narrative(
        title="What it means, how we know, when it is wrong",
        paragraphs=(
            f"From step {found.first_step} on the {found.what} is {found.value}; the optimizer writes it into every "
            "parameter, and no later step can repair them.",
            _how_known(found, cause),
            _when_wrong(cause),
        ),
    )


def _how_known(found: NonFinite, cause: NonFiniteCause) -> str:
    match cause.mechanism:
        case "data":
            assert cause.operation is not None
            return (
                f"That step's autograd graph was walked before backward freed it: {cause.operation.node} is its first "
                "node, and what it was given, which no node had made, was not finite. Blamed is the last statement "
                "that can have made it so, or else the line that hands it on."
            )
        case "operation":
            assert cause.operation is not None
            text = _how_walked(cause.operation)
            if not cause.why_no_line:
                return text + " The operation at the same place in a recorded step was called on the blamed line."
            others = ", ".join(str(line) for line in cause.candidates)
            where = f" (candidates: {others})" if others else ""
            return f"{text} Its line could not be pinned: {cause.why_no_line}{where}."
        case "explosion":
            return (
                "No operation with a singular operand was found, and the gradient norm had reached "
                f"{found.explosion:.0f} times its usual value just before: gradients exploded until they overflowed."
            )
    return (
        "No operation with a singular operand was found in the forward graph, and the gradient norm was as usual "
        "before: the value was born in backward, in the batch itself or in an operation that keeps no trace."
    )


def _how_walked(one: SuspectOperation) -> str:
    if is_guess(one):
        return (
            "The loss was finite, so the step's autograd graph was walked only when backward had made a bad gradient: "
            f"{one.node} is the first node whose slope can be infinite where its value is finite."
        )
    return (
        f"That step's autograd graph was walked before backward freed it: {one.node} is the first "
        f"node that was given {one.operand} ({one.num_bad:,} of {one.num_elements:,} elements)."
    )


def _when_wrong(cause: NonFiniteCause) -> str:
    if cause.mechanism == "operation":
        return (
            "A step that runs other operations than the recorded one shifts the count, and a bad value that an "
            "in-place operation made can show up at a later node."
        )
    return (
        "A bad batch can look the same: check that step's inputs for NaN and Inf, or run it again under "
        "torch.autograd.set_detect_anomaly(True)."
    )
