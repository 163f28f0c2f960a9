"""What each recorded block of memory is for, by the stage that made it and how long it lived."""

from typing import Final, Literal

from efprof.facts.live_memory import LiveWindow

Category = Literal["activations", "gradients", "optimizer state", "inputs", "work space"]

CATEGORIES: Final[tuple[Category, ...]] = ("activations", "gradients", "optimizer state", "inputs", "work space")


def categories_of(window: LiveWindow) -> tuple[Category, ...]:
    """One for each event of the window; that of a release says nothing.

    Activations outlive the forward pass that made them, gradients their backward pass, optimizer state the step of the
    optimizer; inputs are made before the forward pass begins. What ends within the stage that made it is work space.
    """
    found: list[Category] = ["inputs"] * len(window.events)
    for step in sorted({stretch.step for stretch in window.stretches}):
        for stage, first, end in _parts_of(window, step):
            for block in range(first, end):
                found[block] = _category(stage, outlives=int(window.released_at[block]) >= end)
    for block, event in enumerate(window.events):  # another thread's clock may differ a little from the stages'
        if event.is_backward and found[block] in {"activations", "inputs"}:
            found[block] = "gradients" if window.released_at[block] == len(window.events) else "work space"
    return tuple(found)


def _parts_of(window: LiveWindow, step: int) -> list[tuple[str, int, int]]:
    """Stage, first event and end; what lies between forward and backward, such as the loss, belongs to forward."""
    stretches = window.stretches_of(step)
    parts = []
    for place, stretch in enumerate(stretches):
        end = stretch.end
        if stretch.stage == "forward" and place + 1 < len(stretches):
            end = stretches[place + 1].first
        parts.append((stretch.stage, stretch.first, end))
    return parts


def _category(stage: str, *, outlives: bool) -> Category:
    match stage:
        case "forward":
            return "activations" if outlives else "work space"
        case "backward":
            return "gradients" if outlives else "work space"
        case "optimizer":
            return "optimizer state" if outlives else "work space"
    return "inputs"
