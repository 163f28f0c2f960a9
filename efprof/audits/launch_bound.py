"""A device that stands still because the host cannot launch its kernels fast enough."""

from efprof.facts.run.run import Run
from efprof.facts.time.launches import Launches
from efprof.facts.time.launching_lines import what_tells_lines
from efprof.model import CUDA_DEVICE, Examination, Finding, Fix, Gain, NothingToLookAt, SourceLine, ThinEvidence
from efprof.units import format_ms, format_share, format_value

MIN_SHARE = 0.2
"""Of the step without the profiler. What the profiler adds is known to a factor of two only: less may be nothing."""
MAIN_SHARE = 0.5
"""Of all idle time; else something else keeps the device waiting, which is to be mended first."""
MIN_LAUNCHES = 50
"""Per step. A step of fewer kernels is a toy's, or its time goes elsewhere."""
OPTIMIZER_SHARE = 0.25
"""Of all launches: then updating all parameters at once saves more than a tenth of the step's launches."""


def launch_bound(run: Run) -> Examination:
    """Find a device that waits for the host to launch many short kernels.

    ## What it finds
    A fifth of the step or more in gaps that end with a launch, where kernels are shorter than the host takes to launch
    them. Other waits do not count, nor what recording adds.

    ## Why it matters
    The device stands still while Python and PyTorch prepare the next kernel. A faster device changes nothing.

    ## Fix
    `foreach` or `fused` optimizers, CUDA graphs (`torch.compile(mode="reduce-overhead")`) and a larger batch, without
    what the trace shows to be used already.

    ## Predicted gain
    The idle time that these gaps take, less what recording adds to it.
    """
    use = run.get(Launches)
    if not use.by_stage:
        raise NothingToLookAt(CUDA_DEVICE)
    share = use.lost_ms / use.step_ms if use.step_ms else 0.0
    looked_at = (
        f"{format_value(round(use.per_step), 'count')} launches per step, waited for {format_share(share)} of it"
    )
    is_busy_launching = use.per_step >= MIN_LAUNCHES and use.host_us > use.kernel_us
    if share < MIN_SHARE or not is_busy_launching or use.waiting_ms < MAIN_SHARE * use.idle_ms:
        return Examination(looked_at=looked_at)
    if use.line is None:
        raise ThinEvidence(
            f"{looked_at}; no line, module or operator of it is recorded. {what_tells_lines(use.window)}"
        )
    return Examination(looked_at=looked_at, findings=(_finding(use, use.line, share),))


def _finding(use: Launches, blame: SourceLine, share: float) -> Finding:
    where = "each step" if use.window.has_steps else "the trace"
    num, device, host = round(use.per_step), format_ms(use.kernel_us / 1e3), format_ms(use.host_us / 1e3)
    message = f"The device waits {format_ms(use.lost_ms)} of {where} ({format_share(share)}) for the host to launch."
    why = f"Each of {format_value(num, 'count')} launches is {device} of work for the device and {host} for the host."
    return Finding(
        blame=blame,
        category="time",
        headline="The device waits for the host to launch kernels",
        message=message,
        why=f"{why}{'' if blame.line else f' {what_tells_lines(use.window)}'}",
        fix=Fix.by_hand(_advice(use)),
        gain=Gain.of_step("the device's idle time that ends with a launch, less what recording adds", use.lost_ms),
        evidence=(use.evidence(),),
    )


def _advice(use: Launches) -> str:
    """What lets the host launch less, without what is used already."""
    advice = []
    in_optimizer = use.by_stage["optimizer"] / use.by_stage.total()
    if "foreach" not in use.setup and in_optimizer >= OPTIMIZER_SHARE:
        num = format_value(round(in_optimizer * use.per_step), "count")
        advice.append(f"Give the optimizer, which launches {num} kernels, `foreach=True` or `fused=True`")
    if "graphs" not in use.setup:
        advice.append('Where shapes stay the same, use CUDA graphs: `mode="reduce-overhead"` of `torch.compile`')
    elif "compile" not in use.setup:
        advice.append("Have fewer and longer kernels: `torch.compile(model)`")
    advice.append("Give each kernel more to do by a larger batch, as far as memory reaches")
    return ". ".join(advice) + "."
