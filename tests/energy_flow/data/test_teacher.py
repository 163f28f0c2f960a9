import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energy_flow.data.teacher import NGramTeacher, TeacherSettings, build_teacher
from energy_flow.errors import EnergyFlowError

TEACHER = NGramTeacher(3, 5)
PRINT_EMBEDDING = (
    "from energy_flow.data.teacher import NGramTeacher;"
    "print(NGramTeacher(3, 5).embed(['a stable text']).tobytes().hex())"
)


@given(st.text(max_size=60))
def test_every_text_has_unit_length(text: str) -> None:
    assert np.linalg.norm(TEACHER.embed([text])[0]) == pytest.approx(1.0, abs=1e-5)


def test_an_embedding_is_768_numbers_whatever_stands_beside_it_in_whatever_case_and_spacing() -> None:
    together = TEACHER.embed(["one", "two"])
    assert together.shape == (2, 768)
    assert together.dtype == np.float32
    assert np.array_equal(together[1], TEACHER.embed(["two"])[0])
    assert np.array_equal(TEACHER.embed(["Two  Words\n"]), TEACHER.embed(["two words"]))
    command = [sys.executable, "-c", PRINT_EMBEDDING]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == TEACHER.embed(["a stable text"]).tobytes().hex()


def test_texts_alike_are_nearer_than_texts_that_differ() -> None:
    text, alike, different = TEACHER.embed(
        [
            "The statement binds a name to a value.",
            "The statement binds names to values.",
            "Generators suspend their frame at each yield.",
        ]
    )
    assert text @ alike > 0.5
    assert text @ alike > text @ different + 0.3


def test_a_folder_without_a_transformers_model_is_named(tmp_path: Path) -> None:
    settings = TeacherSettings(kind="transformers", path=str(tmp_path), shortest_ngram=3, longest_ngram=5)
    with pytest.raises(EnergyFlowError, match="teacher"):
        build_teacher(settings)
