"""Which line of the steps gives a library's object more to keep: `optimizer.add_param_group({"params": [prompt]})`."""

from efprof.artifacts.holders import Holder
from efprof.facts.step_code import StepCode
from efprof.facts.syntax import called_name, site_of

FEEDERS = {
    "param_groups": frozenset({"add_param_group"}),
    "_parameters": frozenset({"register_parameter"}),
    "_buffers": frozenset({"register_buffer"}),
    "_modules": frozenset({"add_module", "register_module"}),
}
"""By the attribute of torch's classes, the methods that add to it; nothing takes out again what they add."""


def feeding_site(holder: Holder, code: StepCode) -> str | None:
    """The first such call that every step runs."""
    feeders = FEEDERS.get(holder.name, frozenset()) if holder.scope == "attribute" else frozenset()
    for file in code.trees:
        for placed in code.nodes(file):
            if called_name(placed.node) in feeders and code.is_in_step(placed):
                return site_of(file, placed)
    return None
