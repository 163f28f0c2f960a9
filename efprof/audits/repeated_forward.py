"""A module that is called for one item at a time where one batch would do."""

from efprof.facts.run.run import Run
from efprof.facts.steps.step_times import within_idle
from efprof.facts.time.repeated_calls import RepeatedCall, RepeatedCalls
from efprof.facts.time.time_use import TimeUse
from efprof.model import Examination, Finding, Fix, Gain, Narrative
from efprof.units import format_count, format_ms, format_share

MIN_CALLS = 5
"""Two to four calls are branches on purpose: pairs, triplets, a discriminator on real and fake samples."""
MIN_SHARE = 0.2
"""To rewrite a loop is more than an edit: worth it where the calls take a fifth of the step."""
MIN_SAVED = 0.05
"""And a twentieth is the cost of calling, counted low: on a CPU 17 to 44 % for small encoders. Images win little."""


def repeated_forward(run: Run) -> Examination:
    """Find modules that are called for one item at a time.

    ## What it finds
    A line in a loop that calls a module five times or more before a backward pass, each time with a single item of the
    same shape, as `for text in texts: out = encoder(text)`, where no call needs what an earlier one gave.

    ## Why it matters
    Each call costs Python and the launch of every operator, however little it is given, and so does backward.

    ## Fix
    Put the items together (`torch.stack` or `torch.cat`, padded where lengths differ), and call the module once.

    ## Predicted gain
    All but the work on the items is then done once. At most, all but one call's share is saved.
    """
    step_ms, found = run.get(TimeUse).step_ms, run.get(RepeatedCalls)
    costly = [call for call in found.calls if call.total_ms >= MIN_SHARE * step_ms]
    many = [call for call in costly if call.fixed_ms >= MIN_SAVED * step_ms and call.num_calls >= MIN_CALLS]
    guilty = [call for call in many if call.loop and not call.is_chained]
    outermost = [call for call in guilty if not any(call.is_inside(other) for other in guilty)]
    lines = format_count(len(found.calls), "line")
    looked_at = f"{found.num_steps} traced steps, {lines} that called a module item by item"
    if len(guilty) < len(many):
        looked_at += f"; {len(many) - len(guilty)} of them in no loop that was seen, or with what an earlier call gave"
    return Examination(looked_at=looked_at, findings=tuple(_finding(run, call, step_ms) for call in outermost))


def _finding(run: Run, call: RepeatedCall, step_ms: float) -> Finding:
    gain, names = within_idle(run, _gain(call)), " and ".join(f"`{name}`" for name in call.modules)
    per = "step" if call.num_passes == 1 else f"backward pass, of which a step has {call.num_passes},"
    cost = f"{format_ms(call.total_ms)} per step, {format_share(call.total_ms / step_ms)} of it"
    return Finding(
        blame=call.blame,
        category="time",
        headline="A module is called for one item at a time",
        message=f"Calling {names} item by item takes {cost}, with the backward pass.",
        why=f"{'It is' if len(call.modules) == 1 else 'They are'} called {call.num_calls} times per {per} with a "
        f"single item, of shape {list(call.input_shape)}.",
        fix=Fix.by_hand(_fix(call)),
        gain=gain,
        evidence=(_narrative(call),),
    )


def _fix(call: RepeatedCall) -> str:
    names = " and ".join(f"`{name.rpartition('_')[0]}`" for name in call.modules)
    where = "this line" if call.loop is None or call.loop.key == call.blame.key else str(call.loop)
    return (
        f"Call {names} once, with the {call.num_calls} items of the loop at {where} in one batch. Use `torch.cat` if "
        "they have a batch dimension, else `torch.stack`; pad them if their lengths differ."
    )


def _gain(call: RepeatedCall) -> Gain:
    saved = 1 - 1 / call.num_calls
    return Gain(
        basis="model",
        explanation="Python, the engine and launches cost once; at most, all is saved but one call's share",
        step_ms=saved * call.fixed_ms,
        step_ms_interval=(0.0, saved * call.total_ms),
    )


def _narrative(call: RepeatedCall) -> Narrative:
    return Narrative.of(
        "Counted in every step of the profiler windows: calls of the same module from the same line, with no backward "
        f"pass between, whose first `{call.layer}` got the same shape. By its source no call is given what an earlier "
        "one gave. Times are scaled to a step outside windows.",
        "It is wrong where the module keeps a state from call to call, which its caller does not show. Batch "
        "normalisation then sees the whole batch, which changes the numbers.",
    )
