"""Which moves and slices an edit may change: none unless slices are all that is done with the data."""

import ast

import pytest

from efprof.facts.device_dataset_edit import DatasetEdit, dataset_edit


def edit_of(before: str, used: str) -> DatasetEdit | None:
    text = f"{before}\nfor i in range(0, len(data), 64):\n    {used}\n"
    (line,) = [number for number, one in enumerate(before.splitlines(), start=1) if one.endswith("# here")]
    return dataset_edit(ast.parse(text), line)


MOVE = "data = data.to(device)  # here"


@pytest.mark.parametrize(
    "used",
    [
        "model(data[i : i + 64])",
        "model(data[i : i + 64], len(data), data.shape[0])",
        "batch = data[i:]; data.size(0)",
    ],
)
def test_slices_are_found_where_nothing_else_reads_the_data(used: str) -> None:
    edit = edit_of(MOVE, used)
    assert edit is not None
    assert [ast.unparse(one) for one in edit.moves] == ["data.to(device)"]
    assert len(edit.slices) == 1


@pytest.mark.parametrize(
    "used",
    [
        "model(data)",
        "model(data[index])",
        "model(data[i : i + 64]); print(data.mean())",
        "model(data[i : i + 64])\n\ndef evaluate(model):\n    return model(data[0:9])",
        "other = data; model(data[i : i + 64])",
        "pass",
    ],
)
def test_what_may_need_it_on_the_device_leaves_the_edit_to_a_person(used: str) -> None:
    assert edit_of(MOVE, used) is None


def test_what_reads_it_before_it_is_moved_reads_it_on_the_host() -> None:
    assert edit_of(f"print(data.mean())\n{MOVE}", "model(data[i : i + 64])") is not None


def test_in_a_loop_nothing_comes_before_the_move() -> None:
    moved = "for one in range(9):\n    print(data.mean())\n    data = data.to(device)  # here"
    assert edit_of(moved, "model(data[i : i + 64])") is None


def test_a_line_that_assigns_nothing_and_a_file_without_text_have_no_edit() -> None:
    assert edit_of("data.append(x.cuda())  # here", "model(data[i : i + 64])") is None
    assert dataset_edit(None, 1) is None
