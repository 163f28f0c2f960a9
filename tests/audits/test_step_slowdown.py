import numpy as np
import pytest

from efprof.audits.step_slowdown import step_slowdown
from efprof.model import NotRecorded, ThinEvidence
from tests.audits.growing_runs import containers_of
from tests.support.builders import GPU, loader_built, make_steps, trace_event, write_run

SOURCE = """\
def main():
    for x, y in loader:
        out = model(x)
        history.append(out.detach())
        drift = sum((out - old).pow(2).mean() for old in history)
        loss = loss_of(out, y)
        loss.backward()
        optimizer.step()


def loss_of(out, y):
    for old in history:
        out = out - old
    return out
"""
NUM_STEPS = 120
USUAL_MS = {"data_ms": 1.0, "forward_ms": 4.0, "backward_ms": 8.0, "optimizer_ms": 2.0, "other_ms": 0.5}
WINDOWS = {5: "trace-1", 6: "trace-1", 60: "trace-2", 61: "trace-2"}


def noise(step):
    return float(np.random.default_rng(step).uniform(0.98, 1.02))


def steps_with(*, waiting=False, cpu_share=1.0, **stage_ms):
    """Steps of about 15 ms; a stage given as a function of the step replaces its usual length.

    Of that, the process had a core for `cpu_share`.
    """
    lengths = {
        name: lambda step, name=name, ms=ms: noise(step) * (stage_ms[name](step) if name in stage_ms else ms)
        for name, ms in USUAL_MS.items()
    }
    cpu_us = (
        (lambda step: 15_500.0) if waiting else lambda step: 1000 * cpu_share * sum(of(step) for of in lengths.values())
    )
    return make_steps(
        NUM_STEPS, **lengths, cpu_us=cpu_us, window=WINDOWS.get, backward_site="train.py:7:main", loader=1
    )


def window_of(step, line_5_ms, *, model_ms=4.0, backward_ms=8.0, in_loss_ms=0.1, count=2):
    """The Python calls of one step, the first of a window, and the operators that line 5 runs."""
    start = 1000.0 * step
    each_ms = line_5_ms / count
    return [
        *(trace_event("aten::pow", start + 100 + n * each_ms, 0.9 * each_ms, category="cpu_op") for n in range(count)),
        trace_event("nn.Module: Net_0", start, model_ms, call_site="train.py:3:main"),
        trace_event("<built-in function sum>", start + 100, line_5_ms, call_site="train.py:5:main"),
        trace_event("train.py(11): loss_of", start + 300, in_loss_ms, call_site="train.py:6:main"),
        trace_event("torch/_tensor.py(600): backward", start + 500, backward_ms, call_site="train.py:7:main"),
    ]


HISTORY = containers_of(path="main.history", owner="main")


def examine(folder, steps, *, traces=(), **run):
    run.setdefault("counts", HISTORY if traces else ())
    sources = {"train.py": SOURCE}
    return step_slowdown(
        write_run(
            folder, steps=steps, traces=traces, sources=sources, events=[loader_built(site="train.py:2:main")], **run
        )
    )


def grows(step):
    return 0.5 + 0.1 * step


GROWING_LINE = (window_of(5, 2.0, count=12), window_of(60, 13.0, count=122))


def test_blames_the_line_that_grew_between_the_windows(tmp_path):
    (finding,) = examine(tmp_path / "run", steps_with(other_ms=grows), traces=GROWING_LINE).findings
    assert str(finding.blame) == "train.py:5"
    assert finding.message.startswith("A step takes ")
    assert finding.why.startswith("The time between the stages grew most, by one line: ")
    assert finding.why.endswith("`aten::pow` runs 61 times a step instead of 6.")
    longer = "Meanwhile `main.history` (20 entries after step 19, 60 after step 59)"
    assert longer in finding.fix.summary
    assert finding.gain.step_ms == pytest.approx(0.1 * (101 - 12.5), rel=0.05)  # the last third less the first eighth
    low, high = finding.gain.step_ms_interval
    assert low < finding.gain.step_ms < high


def test_the_gain_is_that_of_the_last_steps_though_few_of_them_were_recorded_in_full(tmp_path):
    steps = steps_with(other_ms=lambda step: 0.5 + 0.2 * step)
    for step in steps[70:]:
        step.is_full = step.step % 8 == 0
    for step in steps:
        step.recorder_us, step.total_us = (2000.0, step.total_us + 2000.0) if step.is_full else (0.0, step.total_us)
    (finding,) = examine(tmp_path / "run", steps, traces=GROWING_LINE).findings
    assert finding.gain.step_ms == pytest.approx(0.2 * (101 - 12.5), rel=0.05)


def test_growth_of_full_steps_that_all_steps_together_do_not_show_is_unclear(tmp_path):
    steps = steps_with(other_ms=grows)
    for step in steps:
        step.is_full = step.step % 4 == 0
        step.total_us = step.total_us if step.is_full else 15_500.0 * noise(step.step)
    with pytest.raises(ThinEvidence, match="the last third and the first eighth may be alike"):
        examine(tmp_path / "run", steps, traces=GROWING_LINE)


def test_python_outside_of_calls_is_blamed_on_its_function(tmp_path):
    traces = (window_of(5, 0.1, in_loss_ms=2.0), window_of(60, 0.1, in_loss_ms=13.0))
    (finding,) = examine(tmp_path / "run", steps_with(other_ms=grows), traces=traces).findings
    assert (str(finding.blame), finding.blame.text) == ("train.py:11", "def loss_of(out, y):")
    assert "by one line: Python in it runs as often as before, but longer" in finding.why


def test_steps_of_equal_length_are_silent(tmp_path):
    examination = examine(tmp_path / "run", steps_with(), traces=(window_of(5, 2.0), window_of(60, 13.0)))
    assert examination.findings == ()
    assert "steps 6 to" not in examination.looked_at
    assert "1.00x as long" in examination.looked_at


def test_without_a_line_that_explains_it_the_stage_is_shown_and_larger_steps_not_ruled_out(tmp_path):
    (finding,) = examine(tmp_path / "run", steps_with(backward_ms=lambda s: 8 + 0.2 * s)).findings
    assert str(finding.blame) == "train.py:7"
    assert finding.why.startswith("The backward stage grew most. Its line is not known (trace-<n>.json.gz is missing")
    assert finding.why.endswith(", or the batches became larger.")
    traces = (window_of(5, 0.1, model_ms=2.0), window_of(60, 0.1, model_ms=24.0))
    (finding,) = examine(tmp_path / "second", steps_with(forward_ms=lambda s: 4 + 0.2 * s), traces=traces).findings
    assert str(finding.blame) == "train.py:3"
    assert finding.why.endswith(
        "by one line: `Net_0` runs as often as before, but longer, unless the batches became larger."
    )


@pytest.mark.parametrize(
    ("field", "name"),
    [("samples", "samples"), ("micro_batches", "micro-batches"), ("num_elements", "elements in its batch")],
)
def test_steps_that_were_given_more_are_unclear(field, name, tmp_path):
    steps = steps_with(forward_ms=lambda s: 4 + 0.2 * s)
    for step in steps:
        setattr(step, field, 16 + step.step // 4)
    with pytest.raises(ThinEvidence, match=rf"but a step has 41 {name} there instead of 22"):
        examine(tmp_path / "run", steps)


def test_steps_that_train_more_are_unclear(tmp_path):
    steps = steps_with(backward_ms=lambda s: 8 + 0.2 * s)
    for step in steps:
        step.num_gradients = 8 if step.step >= 70 else 2 if step.step % 20 == 0 else None
    with pytest.raises(ThinEvidence, match="but a step has 8 gradients there instead of 2"):
        examine(tmp_path / "run", steps)


def test_a_line_with_little_of_the_growth_or_that_grew_as_all_did_is_not_blamed(tmp_path):
    early, late = window_of(5, 1.0), window_of(60, 1.5)
    for line in (3, 6, 8):
        late.append(trace_event("f", 60_700.0 + line, 0.6, call_site=f"train.py:{line}:main"))
    with pytest.raises(ThinEvidence, match="no single line grew by enough"):
        examine(tmp_path / "run", steps_with(other_ms=grows), traces=(early, late))
    traces = (window_of(5, 2.0), window_of(60, 13.0, model_ms=24.0, backward_ms=44.0))
    with pytest.raises(ThinEvidence, match="no single line grew by enough"):
        examine(tmp_path / "second", steps_with(other_ms=grows), traces=traces)


def test_what_came_at_once_or_slowed_every_stage_alike_is_unclear(tmp_path):
    steps = steps_with(other_ms=lambda step: 0.5 if step < 50 else 9.0)
    with pytest.raises(ThinEvidence, match="came at once"):
        examine(tmp_path / "run", steps, traces=GROWING_LINE)
    slower = {name: lambda step, ms=ms: ms * (1 + 0.006 * step) for name, ms in USUAL_MS.items()}
    traces = (window_of(5, 0.5, backward_ms=8.0), window_of(60, 0.7, backward_ms=11.0))
    with pytest.raises(ThinEvidence, match="all stages grew alike"):
        examine(tmp_path / "second", steps_with(**slower), traces=traces)


def test_a_process_that_only_waited_is_unclear_but_waiting_is_work_on_a_gpu(tmp_path):
    with pytest.raises(ThinEvidence, match="it waited, for a core"):
        examine(tmp_path / "run", steps_with(backward_ms=lambda s: 8 + 0.2 * s, waiting=True))
    steps = steps_with(backward_ms=lambda s: 8 + 0.2 * s, waiting=True)
    assert len(examine(tmp_path / "second", steps, devices=[GPU]).findings) == 1


def test_a_fetch_that_windows_leave_out_is_blamed_on_the_loader(tmp_path):
    traces = (window_of(5, 0.1), window_of(60, 0.1))
    (finding,) = examine(tmp_path / "run", steps_with(data_ms=grows), traces=traces).findings
    assert str(finding.blame) == "train.py:2"
    assert "a profiler window leaves out the fetch" in finding.why


def test_on_a_machine_that_is_busy_all_along_the_work_grows_by_the_same_factor(tmp_path):
    steps = steps_with(other_ms=grows, cpu_share=0.25)
    (finding,) = examine(tmp_path / "run", steps, traces=GROWING_LINE).findings
    assert str(finding.blame) == "train.py:5"


def test_work_that_doubles_is_told_though_the_machine_got_busy_and_half_as_much_more_is_not(tmp_path):
    def on_a_busy_machine(name, more):
        steps = steps_with(other_ms=lambda step: 0.5 + 2.0 * step)
        for step in steps:
            step.cpu_us = 15_000.0 * (1 + more * step.step / NUM_STEPS)
        return examine(tmp_path / name, steps, traces=GROWING_LINE).findings

    assert len(on_a_busy_machine("doubles", 3.0)) == 1
    with pytest.raises(ThinEvidence, match="it waited, for a core"):
        on_a_busy_machine("half", 0.8)


def on_a_device(steps, device_ms):
    """The same steps on a device, which takes so long for each."""
    for step in steps:
        for span in step.spans:
            span.device_us = 0.0
        step.device_us = 1000.0 * device_ms(step.step)
    return steps


def test_no_more_is_claimed_than_the_device_took_longer_and_nothing_where_it_did_not(tmp_path):
    steps = on_a_device(steps_with(backward_ms=lambda s: 8 + 0.2 * s), lambda step: 40.0 + 0.18 * step)
    (finding,) = examine(tmp_path / "run", steps, devices=[GPU]).findings
    assert finding.gain.explanation.endswith("as far as the device takes longer too")
    assert finding.gain.step_ms == pytest.approx(0.18 * (101 - 12.5), rel=0.03)
    low, high = finding.gain.step_ms_interval
    assert low <= finding.gain.step_ms <= high
    steps = on_a_device(steps_with(backward_ms=lambda s: 8 + 0.2 * s), lambda step: 40.0)
    with pytest.raises(ThinEvidence, match="the device took no longer"):
        examine(tmp_path / "second", steps, devices=[GPU])


def test_single_slow_steps_are_silent_and_a_ratio_that_may_be_small_is_unclear(tmp_path):
    steps = steps_with(other_ms=lambda s: 300.0 if s > 80 and s % 4 == 0 else 0.5)
    assert examine(tmp_path / "run", steps).findings == ()

    def wild(step):
        is_long = step % 20 < (5 if step < 60 else 16)  # long steps come together: a third holds few such stretches
        return 30.0 if is_long else 8.0

    with pytest.raises(ThinEvidence, match="the interval reaches down to"):
        examine(tmp_path / "second", steps_with(backward_ms=wild))


def test_a_short_run_is_thin_evidence_and_one_without_steps_not_applicable(tmp_path):
    with pytest.raises(ThinEvidence):
        step_slowdown(write_run(tmp_path / "run", steps=make_steps(20)))
    with pytest.raises(NotRecorded):
        step_slowdown(write_run(tmp_path / "second"))
