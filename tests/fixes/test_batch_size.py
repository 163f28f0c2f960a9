"""The command that proves a batch size."""

import pytest

from efprof.fixes.settings import fit_command, prove_by_fit
from efprof.model import ConfigurationValue
from efprof.units import GIB, MIB


@pytest.mark.parametrize(
    ("words", "fitted"),
    [
        ("train.py --batch-size 16", "train.py --batch-size {batch}"),
        (
            "train.py --eval-batch-size 16 --train_batch_size=16",
            "train.py --eval-batch-size 16 --train_batch_size={batch}",
        ),
        ("train.py data.batch_size=16 model.size=16", "train.py data.batch_size={batch} model.size=16"),
        ("train.py --epochs 16 --bs 16", "train.py --epochs 16 --bs {batch}"),
    ],
)
def test_the_size_in_the_command_is_replaced(words: str, fitted: str) -> None:
    command, is_known = fit_command(["python", *words.split()], 16, 35 * GIB)
    assert command == f"efprof fit --budget 35GiB -- python {fitted}"
    assert is_known


@pytest.mark.parametrize(
    "words", ["python train.py", "python train.py --batch-size 32", "bash train.sh", "python train.py --num-batches 16"]
)
def test_no_option_is_made_up_for_a_command_that_takes_none(words: str) -> None:
    command, is_known = fit_command(words.split(), 16, 900 * MIB)
    assert command == f"efprof fit --budget 900MiB -- {words}"
    assert not is_known


def test_where_no_option_is_known_it_says_what_the_place_is_for_and_words_stay_whole() -> None:
    change = ConfigurationValue(name="batch_size", old="16", new="64", file="train.py")
    assert prove_by_fit(["python", "train.py"], 16, 8 * GIB, change) == (
        "'efprof fit --budget 8GiB -- python train.py' measures the largest that fits, with {batch} put where the "
        "command sets the size of a micro-batch, now `batch_size` in train.py; if nothing in it does, the program "
        "needs an option for that"
    )
    assert "'my run'" in fit_command(["python", "train.py", "--name", "my run"], 16, GIB)[0]
