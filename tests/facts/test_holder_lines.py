"""Which of several statements made a holder grow, and who else reads it."""

from pathlib import Path
from typing import Any

import pytest

from efprof.artifacts.holders import Holder, HolderCensus
from efprof.facts.holder_lines import HolderGrowth, HolderLines
from efprof.model import NotRecorded
from tests.builders import make_steps, write_run


def holder(**fields: Any) -> Holder:
    """A list of losses that grew by four."""
    defaults: dict[str, Any] = {
        "path": "train.history", "scope": "local", "owner": "train", "name": "history", "file": "train.py",
        "type": "list",
        "tensors_before": 10, "tensors_after": 14, "tensor_bytes_before": 40, "tensor_bytes_after": 56,
        "graph_nodes_before": 100, "graph_nodes_after": 140, "graph_bytes_before": 0, "graph_bytes_after": 0,
        "length_before": 10, "length_after": 14,
    }  # fmt: skip
    return Holder(**{**defaults, **fields})


def growth_of(folder: Path, files: dict[str, str], **fields: Any) -> HolderGrowth:
    """What is known of one holder that grew over the sources."""
    census = HolderCensus(step_before=10, step_after=14, holders=[holder(**fields)])
    run = write_run(folder, steps=make_steps(3), sources=files, censuses=[census])
    (growth,) = run.get(HolderLines).holders
    return growth


def sites_of(growth: HolderGrowth) -> list[str]:
    """The likeliest statements."""
    return [statement.site for statement in growth.statements[: growth.num_likeliest]]


def test_a_local_is_looked_for_in_its_own_function(tmp_path: Path) -> None:
    source = (
        "def evaluate(history):\n    history.append(loss)\n\ndef train():\n    history = []\n    history.append(loss)\n"
    )
    assert sites_of(growth_of(tmp_path, {"train.py": source})) == ["train.py:6:train"]


def test_a_local_that_another_function_fills_is_found_by_its_name(tmp_path: Path) -> None:
    source = (
        "def log(history, loss):\n    history.append(loss)\n\ndef train():\n    history = []\n    log(history, loss)\n"
    )
    assert sites_of(growth_of(tmp_path, {"train.py": source})) == ["train.py:2:log"]


def test_an_attribute_is_looked_for_in_its_class_first(tmp_path: Path) -> None:
    files = {
        "other.py": "def peek(trainer):\n    trainer.history.append(x)\n",
        "train.py": "class Trainer:\n    def step(self):\n        self.history.append(loss)\n",
    }
    growth = growth_of(tmp_path, files, scope="attribute", owner="Trainer", path="Trainer.history")
    assert sites_of(growth) == ["train.py:3:Trainer.step"]


def test_an_attribute_filled_from_another_file_is_found(tmp_path: Path) -> None:
    files = {
        "other.py": "def log(trainer, loss):\n    trainer.history.append(loss)\n",
        "train.py": "class Trainer: ...\n",
    }
    growth = growth_of(tmp_path, files, scope="attribute", owner="Trainer", path="Trainer.history")
    assert sites_of(growth) == ["other.py:2:log"]


def test_a_global_is_found_in_any_function_of_its_module(tmp_path: Path) -> None:
    source = "history = {}\ndef train():\n    history[step] = loss\n"
    growth = growth_of(tmp_path, {"train.py": source}, scope="global", owner="__main__", type="dict")
    assert sites_of(growth) == ["train.py:3:train"]


def test_a_detached_value_is_no_reason_for_graphs(tmp_path: Path) -> None:
    source = "def train():\n    history.append(loss.detach())\n    history.append(logits)\n"
    assert sites_of(growth_of(tmp_path, {"train.py": source})) == ["train.py:3:train"]


def test_the_statement_must_fit_the_holders_type(tmp_path: Path) -> None:
    source = "def train():\n    history[0] = loss\n    history.append(loss)\n"
    assert sites_of(growth_of(tmp_path, {"train.py": source})) == ["train.py:3:train"]


def test_nodes_count_as_bytes_when_backward_has_freed_what_they_saved(tmp_path: Path) -> None:
    growth = growth_of(tmp_path, {"train.py": ""})
    assert growth.bytes_per_step == (40 * 420 + 16) / 4
    assert growth.keeps_graphs


@pytest.mark.parametrize(
    ("line", "needs_graph"),
    [
        ("print(sum(history) / len(history))", False),
        ("mean = float(sum(history))", False),
        ("print(f'{history[-1]:.3f}')", False),
        ("count = len(history)", False),
        ("value = history[-1].item()", False),
        ("history.clear()", False),
        ("total = torch.stack(history).sum()", True),
        ("return history", True),
    ],
)
def test_tells_readers_of_numbers_from_readers_of_graphs(tmp_path: Path, line: str, needs_graph: bool) -> None:
    source = f"def train():\n    history.append(loss)\n    {line}\n"
    readers = growth_of(tmp_path, {"train.py": source}).readers
    assert [reader.line for reader in readers] == ([3] if needs_graph else [])


def test_without_a_census_it_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="holders"):
        write_run(tmp_path, steps=make_steps(3)).get(HolderLines)


def test_of_two_statements_the_one_that_keeps_no_detached_value_is_likelier(tmp_path: Path) -> None:
    source = (
        "def train():\n    history = []\n    if healthy:\n        history.append((step, loss.detach().mean()))\n"
        "    else:\n        history.append((step, loss))\n"
    )
    assert sites_of(growth_of(tmp_path, {"train.py": source})) == ["train.py:6:train"]
