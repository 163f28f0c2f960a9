"""Parameters that the loss depends on and that no update changes."""

from efprof.facts.numbers.lost_updates import Seen, Untrained, parameters_seen
from efprof.facts.run.run import Run
from efprof.facts.source.sources import line_at
from efprof.model import Examination, Finding, Fix, Gain, Narrative
from efprof.units import format_bytes, format_count

HEADLINES = {
    "not_optimized": "Parameters are in no optimizer and are never trained",
    "helper": "Gradients are computed for a frozen model",
    "replaced": "The optimizer has parameters of layers that were replaced",
    "no_gradient": "Parameters of the optimizer get no gradient",
}


def untrained_parameters(run: Run) -> Examination:
    """Find parameters that get gradients and that no optimizer has, or that an optimizer has and that get none.

    ## What it finds
    Parameters that had gradients in two of the first steps, kept their values, and that no optimizer has: layers in a
    plain list, which `model.parameters()` does not see, or an optimizer that was built before them. Also those of an
    optimizer that had no gradient in 20 updates.

    ## Why it matters
    They stay as they were initialised, and the loss falls more slowly than it could. A model that is meant to stay as
    it is, as for a perceptual loss, keeps gradients that nothing uses.

    ## Fix
    Keep the layers in `nn.ModuleList` and build the optimizer after them; `requires_grad_(False)` for what is to stay.

    ## Predicted gain
    No time: a model that is trained as a whole. A frozen one saves its gradients' bytes.
    """
    seen = parameters_seen(run)
    return Examination(
        looked_at=f"{format_count(seen.num_parameters, 'parameter')} that had gradients",
        findings=tuple(_finding(run, seen, one) for one in seen.untrained if one.site),
    )


def _finding(run: Run, seen: Seen, group: Untrained) -> Finding:
    return Finding(
        blame=line_at(run, group.site or ""),
        category="memory" if group.why == "helper" else "numbers",
        headline=HEADLINES[group.why],
        message=_message(seen, group),
        why=f"The largest are {', '.join(group.names)}.",
        fix=Fix.by_hand(_remedy(group)),
        gain=Gain.none("not predicted; what is trained, or kept, changes"),
        evidence=(
            Narrative.of(
                "Those that no optimizer has were looked at in two steps, and had the same values in both.",
                "It is meant where a part of a model is trained alone, or a head is for batches that did not come.",
            ),
        ),
        severity="medium" if group.why in ("not_optimized", "replaced") else "low",
    )


def _message(seen: Seen, group: Untrained) -> str:
    parameters = format_count(group.num_parameters, "parameter")
    share = f"{group.num_elements:,} of {seen.num_elements:,} elements"
    if group.why == "not_optimized":
        return f"{parameters} with {share} get gradients, and no optimizer has them: they are never trained."
    if group.why == "helper":
        size = format_bytes(group.gradient_bytes)
        return f"{parameters} of modules in evaluation mode keep {size} of gradients that no optimizer uses."
    if group.why == "replaced":
        return (
            f"{parameters} of {group.optimizer} ({group.num_elements:,} elements) are of layers that no model has: "
            "what took their place is not trained."
        )
    return (
        f"{parameters} of {group.optimizer} ({group.num_elements:,} elements) had no gradient in its first 20 updates."
    )


def _remedy(group: Untrained) -> str:
    size = format_bytes(group.gradient_bytes)
    if group.why == "helper":
        return f"Call `requires_grad_(False)` on that model: it saves {size} of gradients and their part of backward."
    if group.why == "replaced":
        return f"Build `{group.optimizer}` after the layers are replaced."
    if group.why == "no_gradient":
        return "Look whether the forward pass should use them; if not, leave them out of the optimizer."
    return (
        f"Give them to `{group.optimizer}`: keep layers in `nn.ModuleList`, and build it after them. If they are to "
        f"stay as they are, `requires_grad_(False)` saves {size} of gradients."
    )
