"""repeated_forward: fires where a line calls a module item by item, is silent where the calls cannot be one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from efprof.audits.repeated_forward import repeated_forward
from efprof.facts.run.run import Run, open_run
from efprof.model import Examination, Finding, NotRecorded, ThinEvidence
from tests.support.builders import make_steps, trace_event, write_run

RUNS = Path(__file__).parents[1] / "runs"
TEXTS = """\
def train(encoder, head, texts):
    outputs = []
    for text in texts:
        text = text.unsqueeze(0)
        outputs.append(encoder(text))
    loss = head(torch.cat(outputs)).sum()
    loss.backward()
"""
CHAIN = """\
def train(cell, inputs):
    state = None
    for x in inputs:
        x = x.float()
        state = cell(x, state)
    loss = state.sum()
    loss.backward()
"""
WINDOW = (20, 21)
"""The steps that lie in it; each takes 15.5 ms, as do those outside of windows."""
ITEM = [[1, 24, 48], [96, 48], [96]]


def calls_of(
    step: int, count: int, *, module: str = "Encoder_0", dims: Any = ITEM, ms: float = 0.8, **fields: Any
) -> Iterator[dict[str, Any]]:
    """Calls at line 5, each of which is an operator for a quarter of its time, and nothing but Python for the rest."""
    layer, work = fields.pop("layer", "aten::linear"), fields.pop("work", 0.25)
    is_learned = {"Sequence number": 7} if fields.pop("is_learned", True) else {}
    for number in range(count):
        start = 1000.0 * step + 1.0 + ms * number
        yield trace_event(f"nn.Module: {module}", start, 0.9 * ms, **{"call_site": "train.py:5:train", **fields})
        inputs = {"Input Dims": dims(number) if callable(dims) else dims}
        yield trace_event(layer, start + 0.01 * ms, work * ms, category="cpu_op", **inputs, **is_learned)


def backward(step: int, start_ms: float = 10.0) -> dict[str, Any]:
    return trace_event("torch/_tensor.py(600): backward", 1000.0 * step + start_ms, 1.0, call_site="train.py:7:train")


def run_of(folder: Path, *events: dict[str, Any], source: str = TEXTS, steps: tuple[int, ...] = WINDOW) -> Run:
    frames = [trace_event("train.py(1): train", 1000.0 * step, 15.5) for step in steps]
    records = make_steps(40, window=lambda step: "trace-1" if step in steps else None)
    return write_run(folder / "run", steps=records, sources={"train.py": source}, traces=[[*frames, *events]])


def examine(folder: Path, *, count: int = 10, source: str = TEXTS, **fields: Any) -> Examination:
    """Ten calls of one item in both steps, and a backward pass after them."""
    events = [event for step in WINDOW for event in (*calls_of(step, count, **fields), backward(step))]
    return repeated_forward(run_of(folder, *events, source=source))


def only(examination: Examination) -> Finding:
    (finding,) = examination.findings
    return finding


def test_it_blames_the_line_that_calls_the_encoder_for_each_text_and_names_the_loop(tmp_path: Path) -> None:
    finding = only(examine(tmp_path))
    assert (str(finding.blame), finding.blame.text) == ("train.py:5", "outputs.append(encoder(text))")
    assert finding.message.startswith("Calling `Encoder_0` item by item takes ")
    assert finding.why == "It is called 10 times per step with a single item, of shape [1, 24, 48]."
    assert "the 10 items of the loop at train.py:3 in one batch" in finding.fix.summary
    assert (finding.fix.applicability, finding.fix.changes) == ("manual", ())


def test_python_is_won_for_all_calls_but_one_and_no_more_than_they_take(tmp_path: Path) -> None:
    gain = only(examine(tmp_path)).gain
    in_python_ms, all_ms = 10 * (0.8 * (0.9 - 0.25) + 0.1), 10 * 0.8 * 0.9  # 0.1 ms for each launch
    assert (gain.basis, gain.step_ms) == ("model", pytest.approx(0.9 * in_python_ms, rel=0.01))
    assert gain.step_ms_interval == (0.0, pytest.approx(0.9 * all_ms, rel=0.01))


def test_an_item_without_a_batch_dimension_is_one_too(tmp_path: Path) -> None:
    assert "shape [48]" in only(examine(tmp_path / "vector", dims=[[48], [96, 48], [96]])).why
    image = [[3, 32, 32], [8, 3, 3, 3], [8]]
    assert "shape [3, 32, 32]" in only(examine(tmp_path / "image", layer="aten::conv2d", dims=image)).why


def test_the_batch_of_a_recurrent_layer_is_told_by_its_state(tmp_path: Path) -> None:
    def gru(batch: int) -> dict[str, Any]:
        return {"layer": "aten::gru", "dims": [[24, batch, 8], [1, batch, 16], [[48, 8], [48, 16]]]}

    assert "shape [24, 1, 8]" in only(examine(tmp_path / "one", **gru(1))).why
    assert examine(tmp_path / "many", **gru(64)).findings == ()


def test_a_batch_and_inputs_of_unlike_shapes_are_silent(tmp_path: Path) -> None:
    assert examine(tmp_path / "batch", dims=[[64, 48], [96, 48], [96]]).findings == ()
    pyramid = examine(tmp_path / "pyramid", layer="aten::conv2d", dims=lambda n: [[1, 8, 64 - n, 64], [8, 8, 3, 3]])
    assert pyramid.findings == ()
    assert examine(tmp_path / "tokens", layer="aten::embedding", dims=[[256, 48], [16]]).findings == ()


def test_a_recurrent_cell_is_silent_whatever_its_batch(tmp_path: Path) -> None:
    cell = {"module": "GRUCell_0", "layer": "aten::gru_cell", "source": CHAIN}
    assert examine(tmp_path / "large", dims=[[64, 48], [64, 48]], **cell).findings == ()
    small = examine(tmp_path / "small", dims=[[1, 48], [1, 48]], **cell)
    assert small.findings == ()
    assert small.looked_at.endswith("1 of them in no loop that was seen, or with what an earlier call gave")


def test_accumulated_micro_batches_are_silent(tmp_path: Path) -> None:
    events = [
        event
        for step in WINDOW
        for number, call in enumerate([*calls_of(step, 10)][::2])
        for event in ({**call, "dur": 600.0}, backward(step, 1.7 + 0.8 * number) | {"dur": 50.0})
    ]
    operators = [event for step in WINDOW for event in [*calls_of(step, 10)][1::2]]
    assert repeated_forward(run_of(tmp_path, *events, *operators)).findings == ()


def test_branches_that_share_their_weights_are_silent(tmp_path: Path) -> None:
    assert examine(tmp_path / "pair", count=2, ms=5.0).findings == ()
    assert examine(tmp_path / "four", count=4, ms=2.5).findings == ()


def test_what_is_not_differentiated_or_repeated_by_a_library_is_silent(tmp_path: Path) -> None:
    assert examine(tmp_path / "evaluated", is_learned=False).findings == ()
    library = [
        trace_event("torch/utils/checkpoint.py(90): checkpoint", 1000.0 * step + 0.9, 9.0, call_site="train.py:5:train")
        for step in WINDOW
    ]
    calls = [event for step in WINDOW for event in calls_of(step, 10)]
    for call in calls:
        call["args"].pop("Call site", None)
    ends = [backward(step) for step in WINDOW]
    assert repeated_forward(run_of(tmp_path, *library, *calls, *ends)).findings == ()


def test_what_is_computed_anew_in_the_backward_pass_is_silent(tmp_path: Path) -> None:
    events = [event for step in WINDOW for event in calls_of(step, 10)]
    around = [backward(step, 0.5) | {"dur": 12_000.0} for step in WINDOW]
    assert repeated_forward(run_of(tmp_path, *around, *events)).findings == ()


def test_a_count_that_differs_from_step_to_step_is_silent(tmp_path: Path) -> None:
    events = [*calls_of(20, 10), backward(20), *calls_of(21, 9), backward(21)]
    assert repeated_forward(run_of(tmp_path, *events)).findings == ()


def test_calls_that_take_little_of_the_step_are_silent(tmp_path: Path) -> None:
    assert examine(tmp_path, ms=0.3).findings == ()


def test_items_that_each_compute_for_long_are_silent(tmp_path: Path) -> None:
    assert examine(tmp_path / "short", work=0.7).findings != ()
    assert examine(tmp_path / "long", work=0.88, count=5, ms=1.7).findings == ()


def test_a_line_that_no_loop_is_around_is_silent(tmp_path: Path) -> None:
    source = TEXTS.replace("for text in texts:", "if texts:")
    assert examine(tmp_path, source=source).findings == ()


def test_the_recorded_encoder_is_found_and_its_twin_is_silent() -> None:
    finding = only(repeated_forward(open_run(RUNS / "repeated_forward-sick")))
    assert finding.blame.text.endswith("# fault")
    assert repeated_forward(open_run(RUNS / "repeated_forward-healthy")).findings == ()


def test_it_abstains_without_a_trace_on_one_step_and_without_lines_or_shapes(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded):
        repeated_forward(write_run(tmp_path / "untraced", steps=make_steps(30)))
    with pytest.raises(ThinEvidence, match="2 are needed"):
        repeated_forward(run_of(tmp_path / "short", *calls_of(20, 10), steps=(20,)))
    with pytest.raises(ThinEvidence, match="the exact line of each call, or shapes"):
        repeated_forward(
            run_of(tmp_path / "shapeless", *(event for event in calls_of(20, 10) if "nn." in event["name"]))
        )
    with pytest.raises(ThinEvidence, match="the exact line of each call, or shapes"):
        repeated_forward(
            run_of(tmp_path / "placeless", *(event for event in calls_of(20, 10) if "::" in event["name"]))
        )
