from itertools import pairwise
from pathlib import Path

import pytest

from energy_flow.data.corpus import pairs_of_file, python_documentation_pairs
from energy_flow.errors import EnergyFlowError


def _written(tmp_path: Path, name: str, content: str | bytes) -> Path:
    file = tmp_path / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def test_the_documentation_gives_many_pairs_of_consecutive_sentences() -> None:
    pairs = python_documentation_pairs()
    assert len(pairs) > 1000
    following = sum(first.target_text == second.input_text for first, second in pairwise(pairs))
    assert following > len(pairs) / 2
    assert all(25 <= len(pair.input_text) <= 400 for pair in pairs)
    assert python_documentation_pairs() == pairs


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("a.tsv", "one\ttwo\nonly one\n", "a.tsv:2"),
        ("a.tsv", "one\ttwo\tthree\n", "a.tsv:1"),
        ("a.tsv", "one\t \n", "a.tsv:1"),
        ("a.tsv", "\n\n", "no pairs"),
        ("a.tsv", b"one\ttwo\none\t\xff\n", "a.tsv:2 is not UTF-8"),
        ("a.jsonl", '{"input": "one", "target": "two"}\n{"input": "one"\n', "a.jsonl:2"),
        ("a.jsonl", '{"input": "one", "target": 2}\n', "a.jsonl:1"),
        ("a.jsonl", '{"input": "one", "target": " "}\n', "a.jsonl:1"),
        ("a.jsonl", '["one", "two"]\n', "a.jsonl:1"),
        ("a.csv", "one,two\n", "a.csv"),
    ],
)
def test_a_wrong_file_is_refused_by_its_name_and_line(
    tmp_path: Path, name: str, content: str | bytes, named: str
) -> None:
    with pytest.raises(EnergyFlowError, match=named):
        list(pairs_of_file(_written(tmp_path, name, content)))


def test_a_missing_file_is_named_and_tsv_and_jsonl_give_the_same_pairs(tmp_path: Path) -> None:
    with pytest.raises(EnergyFlowError, match=r"none\.tsv"):
        list(pairs_of_file(tmp_path / "none.tsv"))
    tsv = _written(tmp_path, "a.tsv", "\ufeffone\ttwo\r\n\nKäfer\t 虫 \n")
    jsonl = _written(
        tmp_path, "a.jsonl", '{"input": "one", "target": "two"}\n\n{"input": "Käfer", "target": "虫", "id": 3}\n'
    )
    assert list(pairs_of_file(tsv)) == list(pairs_of_file(jsonl)) == [("one", "two"), ("Käfer", "虫")]
