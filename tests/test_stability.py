"""The checklist of `make stability` on what was seen: each point holds on sound training and fails on its own fault."""

from dataclasses import replace

import pytest

from benchmarks.stability_checks import LONG_PHASE_STEPS, Outcome, Seen, outcomes

NUM_STEPS = 300


def sound() -> Seen:
    return Seen(
        batch_size=8,
        clip_norm=1.0,
        energy_bound=4.0,
        peak_bytes=[50e6, 60e6, *[70e6] * (NUM_STEPS - 2)],
        retained_bytes=[30e6 + 1000 * (step % 3) for step in range(NUM_STEPS)],
        step_ms=[50.0, *[10.0] * (NUM_STEPS - 1)],
        yardstick_ms=[0.5] * NUM_STEPS,
        clipped_norm=[0.5] * (NUM_STEPS - 1) + [1.0],
        gru_input=[3.0] * NUM_STEPS,
        gru_hidden=[0.9] * NUM_STEPS,
        loss=[2.0 - step / NUM_STEPS for step in range(NUM_STEPS)],
        gradient_norm=[1.5] * NUM_STEPS,
        is_skipped=[False] * NUM_STEPS,
    )


def broken(seen: Seen) -> list[str]:
    return [outcome.point for outcome in outcomes(seen, NUM_STEPS) if not outcome.is_held]


def test_sound_training_holds_every_point() -> None:
    assert broken(sound()) == []


@pytest.mark.parametrize(
    ("fault", "point"),
    [
        (replace(sound(), peak_bytes=[70e6] * 200 + [71e6] * 100), "peak memory after step 3"),
        (replace(sound(), step_ms=[10.0] * 150 + [11.5] * 150), "step time, last third to first"),
        (replace(sound(), reads=["aten::item"]), "host reads in a step"),
        (replace(sound(), gradient_norm=[float("nan")] * NUM_STEPS), "non-finite losses, norms, skips"),
        (replace(sound(), is_skipped=[True] * NUM_STEPS), "non-finite losses, norms, skips"),
        (replace(sound(), clipped_norm=[1.1] * NUM_STEPS), "clipped gradient norm"),
        (replace(sound(), gru_hidden=[1.1] * NUM_STEPS), "GRU input and state"),
        (replace(sound(), gru_input=[1e3] * NUM_STEPS), "GRU input and state"),
        (replace(sound(), loss=[2.0] * NUM_STEPS), "loss, first tenth to last"),
        (
            replace(sound(), retained_bytes=[30e6 + 1000.0 * step for step in range(NUM_STEPS)]),
            "memory's slope, bytes per step",
        ),
        (replace(sound(), error="out of memory"), "all steps, at the batch size"),
    ],
)
def test_each_fault_breaks_its_own_point(fault: Seen, point: str) -> None:
    assert broken(fault) == [point]


def test_a_machine_that_slows_down_is_no_training_that_does() -> None:
    slowed = replace(sound(), step_ms=[10.0] * 150 + [15.0] * 150, yardstick_ms=[0.5] * 150 + [0.75] * 150)
    assert broken(slowed) == []


def test_a_long_phase_may_not_grow_at_all() -> None:
    seen = sound()
    seen.retained_bytes = [30e6 + 2.0 * step for step in range(LONG_PHASE_STEPS)]
    assert broken(seen) == ["memory's slope, bytes per step"]


def test_a_phase_that_broke_off_holds_nothing() -> None:
    broken_off = outcomes(Seen(batch_size=8, clip_norm=1.0, energy_bound=4.0, error="out of memory"), NUM_STEPS)
    assert {outcome.is_held for outcome in broken_off} == {False}
    assert broken_off[0] == Outcome(point=broken_off[0].point, is_held=False, figure="out of memory")
