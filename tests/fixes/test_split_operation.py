"""The advice to do an operation in parts."""

from efprof.fixes.split_operation import split_operation


def test_writes_the_number_of_parts_into_the_code_it_proposes() -> None:
    fix = split_operation(8)
    assert fix.summary.count("chunk(8)") == 2
    assert fix.applicability == "manual"
