"""What is known of a graph that backward keeps: the call's text, its blocks, and when those would have gone."""

from pathlib import Path

import pytest

from efprof.facts.live_memory import LiveMemory
from efprof.facts.retained_backward_call import retaining_call
from efprof.facts.retained_backward_replay import GraphReplay, replay_without_graphs
from efprof.facts.sources import Sources
from efprof.units import MIB
from tests.facts.retained_backward_runs import (
    BLOCK,
    OUTPUT,
    Window,
    kept_into_next_step,
    released_at_its_end,
    run_of,
)


def replay_of(folder: Path, allocations: list[object], seen_bytes: int = 3 * BLOCK) -> GraphReplay | None:
    (window,) = run_of(folder, allocations=allocations).get(LiveMemory).windows  # type: ignore[arg-type]
    return replay_without_graphs(window, seen_bytes)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("loss.backward(retain_graph=True)", ("retain_graph",)),
        ("torch.autograd.backward(loss, retain_graph=True)", ("retain_graph",)),
        ("backward([a, b], create_graph=True, retain_graph=True)", ("create_graph", "retain_graph")),
        ("accelerator.backward(loss, create_graph=True)", ("create_graph",)),
        ("self.manual_backward(loss, retain_graph=True)", ("retain_graph",)),
        ("scaler.scale(loss).backward(None, retain_graph=True)", ("retain_graph",)),
    ],
)
def test_every_way_to_call_backward_is_read(text: str, arguments: tuple[str, ...]) -> None:
    call = retaining_call(Sources(files={"train.py": text.split("\n")}), "train.py:1:<module>")
    assert call is not None
    assert call.arguments == arguments


@pytest.mark.parametrize(
    "text",
    [
        "loss.backward(None, True)",
        "loss.backward(retain_graph=is_shared)",
        "loss.backward(retain_graph=False, create_graph=True)",
        "torch.autograd.grad(loss, x, retain_graph=True)",
        "a.backward(retain_graph=True); b.backward(retain_graph=True)",
        "loss.backward(",
        "x = 1",
    ],
)
def test_what_is_no_plain_true_is_not_edited(text: str) -> None:
    assert retaining_call(Sources(files={"train.py": [text]}), "train.py:1:<module>") is None


def test_a_variable_of_the_program_is_told_from_the_graph(tmp_path: Path) -> None:
    replay = replay_of(tmp_path, kept_into_next_step())
    assert replay is not None
    assert replay.kept_bytes == 3 * BLOCK, "the outputs are not in it"


def test_without_the_graphs_memory_is_never_more_and_the_rest_is_the_same(tmp_path: Path) -> None:
    replay = replay_of(tmp_path, kept_into_next_step())
    assert replay is not None
    saved = replay.window.live_bytes - replay.live_without
    assert saved.min() == 0
    assert saved.max() == 3 * BLOCK
    assert saved[0] == 0


def test_the_interval_runs_from_all_at_the_end_of_backward_to_all_at_its_begin(tmp_path: Path) -> None:
    replay = replay_of(tmp_path, released_at_its_end())
    assert replay is not None
    # As it ran: graph, output and two gradients. Without: no less than before backward, and up to as much as it ran.
    assert replay.window.peak_bytes // MIB == 60
    assert tuple(num_bytes // MIB for num_bytes in replay.saved_interval) == (0, 20)
    assert replay.saved_interval[0] <= replay.saved_bytes <= replay.saved_interval[1]


def test_blocks_that_hold_less_than_the_recorder_saw_are_no_graph(tmp_path: Path) -> None:
    assert replay_of(tmp_path, kept_into_next_step(), seen_bytes=10 * BLOCK) is None


def test_a_window_without_backward_has_no_graph(tmp_path: Path) -> None:
    window = Window()
    window.allocate(5, 0.5, OUTPUT, BLOCK)
    assert replay_of(tmp_path, window.allocations) is None
