"""Which moves and slices an edit may change: none unless slices are all that is done with the data."""

import pytest

from efprof.fixes.keep_less import keep_on_host
from efprof.model import CodeEdit, SourceFile


def edits_of(before: str, used: str) -> tuple[CodeEdit, ...]:
    text = f"{before}\nfor i in range(0, len(data), 64):\n    {used}\n"
    (line,) = [number for number, one in enumerate(before.splitlines(), start=1) if one.endswith("# here")]
    return keep_on_host(SourceFile("train.py", text.splitlines()), line)


MOVE = "data = data.to(device)  # here"


@pytest.mark.parametrize(
    "used",
    ["model(data[i : i + 64])", "model(data[i : i + 64], len(data), data.shape[0])", "batch = data[i:]; data.size(0)"],
)
def test_slices_are_found_where_nothing_else_reads_the_data(used: str) -> None:
    moved, taken = edits_of(MOVE, used)
    assert moved.new == "data = data.pin_memory()  # here"
    assert "].to(device, non_blocking=True)" in taken.new


@pytest.mark.parametrize(
    "used",
    [
        "model(data)",
        "model(data[index])",
        "model(data[i : i + 64]); print(data.mean())",
        "model(data[i : i + 64]); data[i : i + 64] = 0",
        "model(data[i : i + 64])\n\ndef evaluate(model):\n    return model(data)",
        "other = data; model(data[i : i + 64])",
        "pass",
    ],
)
def test_what_may_need_it_on_the_device_leaves_the_edit_to_a_person(used: str) -> None:
    assert edits_of(MOVE, used) == ()


def test_a_slice_in_another_function_leaves_the_edit_to_a_person() -> None:
    text = f"def train(data):\n    {MOVE}\n    model(data[0:9])\n\ndef evaluate(data):\n    model(data[0:9])\n"
    assert keep_on_host(SourceFile("train.py", text.splitlines()), 2) == ()


@pytest.mark.parametrize("before", ["print(data.mean())", "data = data[:1000]"])
def test_what_reads_it_before_it_is_moved_leaves_the_edit_to_a_person(before: str) -> None:
    assert edits_of(f"{before}\n{MOVE}", "model(data[i : i + 64])") == ()


def test_a_line_that_assigns_nothing_and_a_file_without_text_have_no_edit() -> None:
    assert edits_of("data.append(x.cuda())  # here", "model(data[i : i + 64])") == ()
    assert keep_on_host(SourceFile("train.py"), 1) == ()
