"""What a run gives to those who ask it for facts."""

from pathlib import Path
from typing import ClassVar, Self

import pytest

from efprof.facts.run.run import Run
from efprof.model import UnreadableInput
from tests.support.builders import write_run


class Broken:
    """A fact of a file that cannot be read."""

    num_read: ClassVar[int] = 0

    @classmethod
    def compute(cls, run: Run) -> Self:
        cls.num_read += 1
        raise UnreadableInput(f"{run.folder} is broken.")


def test_a_file_that_cannot_be_read_is_read_once_and_each_asker_has_an_error_of_its_own(tmp_path: Path) -> None:
    run, errors = write_run(tmp_path / "run"), []
    for _ in range(3):
        with pytest.raises(UnreadableInput, match="is broken") as caught:
            run.get(Broken)
        errors.append(caught.value)
    assert Broken.num_read == 1
    assert len(set(map(id, errors))) == 3
    assert run.find(Broken, UnreadableInput) is None
