"""The parts of a training step and the instants between them, in the order they come."""

from typing import Final

STAGES: Final = ("data", "forward", "backward", "optimizer", "other")

BOUNDARIES: Final = (
    "pre_forward",
    "post_forward_pre_backward",
    "pre_backward",
    "post_backward",
    "post_optimizer_step",
)
