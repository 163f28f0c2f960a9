"""The tables of memory by stage."""

import dataclasses

from efprof.model import BOUNDARIES
from efprof.report.memory_table import (
    MAX_ROWS,
    STAGE_COLUMNS,
    STEP_COLUMNS,
    largest_jump_sentence,
    stage_rows,
    step_memory_rows,
    step_memory_title,
)
from tests.report.report_sample import MIB, make_measurements, make_memory


def test_every_boundary_of_every_step_has_allocated_delta_and_reserved() -> None:
    rows = step_memory_rows(make_memory(3))
    assert [row[1] for row in rows] == [*BOUNDARIES] * 3
    assert {len(row) for row in rows} == {len(STEP_COLUMNS)}
    assert rows[1] == ("0", "post_forward_pre_backward", "2.05 GiB", "900 MiB", "2.34 GiB")
    assert rows[0][3] == "", "nothing was measured before it"


def test_a_long_run_keeps_its_largest_jump_and_says_how_many_rows_are_left_out() -> None:
    memory = list(make_memory(700))
    place = 5 * 333 + 1
    memory[place] = dataclasses.replace(memory[place], allocated_bytes=memory[place].allocated_bytes + 5000 * MIB)
    rows = step_memory_rows(memory)
    assert len(rows) <= MAX_ROWS
    assert {"0", "333", "699"} <= {row[0] for row in rows}
    assert step_memory_title(len(rows), len(memory)).startswith(f"Memory of single steps: {len(rows)} of 3,500 rows")


def test_the_largest_jump_names_its_boundary_and_step() -> None:
    deltas = [
        dataclasses.replace(delta, largest_jump_bytes=place * MIB, largest_jump_step=7)
        for place, delta in enumerate(make_measurements().stage_deltas)
    ]
    assert largest_jump_sentence(deltas) == (
        "Largest jump: 4.00 MiB from the boundary before to `post_optimizer_step` in step 7."
    )
    assert largest_jump_sentence(()) == ""


def test_the_first_boundary_has_no_delta_to_show() -> None:
    first = dataclasses.replace(
        make_measurements().stage_deltas[0], average_delta_bytes=0.0, largest_jump_bytes=0, largest_jump_step=0
    )
    (row,) = stage_rows([first])
    assert (len(row), row[-3:]) == (len(STAGE_COLUMNS), ("", "", ""))
