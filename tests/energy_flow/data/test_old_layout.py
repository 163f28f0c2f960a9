import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from energy_flow.config_parsing import load_config
from energy_flow.data.dataset import PairDataset
from energy_flow.data.old_layout import import_old_dataset
from energy_flow.energy_config import EnergyConfig
from energy_flow.errors import EnergyFlowError
from energy_flow.text_bridge.tokens import decode

TEXTS = [("a cat", "a dog"), ("ein Käfer", "zwei Käfer"), ("one", "two")]
ROWS = torch.randn(3, 768, generator=torch.Generator().manual_seed(0)) * 5


class Attack:
    """What a pickle would run when it is loaded as pickles are."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.proof,)


def _old_file(folder: Path, **changed: object) -> Path:
    file = folder / "old.pt"
    fields = {"text_pairs": TEXTS, "input_embeddings": ROWS, "target_embeddings": ROWS.flip(0), **changed}
    torch.save({name: value for name, value in fields.items() if value is not None}, file)
    return file


def _imported(file: Path, config: EnergyConfig) -> PairDataset:
    return import_old_dataset(file, file.parent / "imported", config)


@pytest.mark.parametrize(
    "texts",
    [
        TEXTS,
        tuple(TEXTS),
        [list(pair) for pair in TEXTS],
        [{"input": one, "target": other, "id": 1} for one, other in TEXTS],
        [{"input_text": one, "target_text": other} for one, other in TEXTS],
    ],
    ids=["tuples", "a tuple", "lists", "input and target", "input_text and target_text"],
)
@pytest.mark.parametrize("can_be_mapped", [True, False], ids=["of today", "from before torch could map files"])
def test_an_old_dataset_keeps_its_texts_in_whatever_form(
    config: EnergyConfig, tmp_path: Path, texts: object, can_be_mapped: bool
) -> None:
    file = _old_file(tmp_path, text_pairs=texts)
    torch.save(torch.load(file), file, _use_new_zipfile_serialization=can_be_mapped)
    dataset = _imported(file, config)
    assert [dataset.pair(index) for index in range(len(dataset))] == TEXTS


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_embeddings_of_any_floating_type_become_float32_of_unit_length(
    config: EnergyConfig, tmp_path: Path, dtype: torch.dtype
) -> None:
    rows = ROWS.to(dtype)
    batch = _imported(_old_file(tmp_path, input_embeddings=rows, target_embeddings=rows.flip(0)), config)[[0, 1, 2]]
    torch.testing.assert_close(batch.input_embedding, normalize(rows.double()).float())
    assert torch.equal(batch.target_embedding, batch.input_embedding.flip(0))
    torch.testing.assert_close(batch.input_embedding.norm(dim=1), torch.ones(3))


def test_words_of_an_imported_text_are_not_dropped_which_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config("debug", assignments=["data.word_dropout=0.9"])
    with caplog.at_level(logging.WARNING):
        dataset = _imported(_old_file(tmp_path), config)
        batches = [dataset[[key, key + 3]] for key in (0, 1, 2)]
    assert [decode(batch.input_tokens[1].numpy()) for batch in batches] == [pair[0] for pair in TEXTS]
    torch.testing.assert_close(batches[2].input_embedding[1], normalize(ROWS)[2])
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "data.word_dropout=0.9" in caplog.text


def test_a_malicious_file_or_bare_pickle_runs_nothing_and_is_refused(config: EnergyConfig, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    file = _old_file(tmp_path, text_pairs=[Attack(proof)])
    with pytest.raises(EnergyFlowError, match=r"old\.pt .* was not run$"):
        _imported(file, config)
    assert not proof.exists()
    assert not (tmp_path / "imported").exists()
    proof, file = tmp_path / "proof", tmp_path / "old.pt"
    file.write_bytes(pickle.dumps(Attack(proof)))
    with pytest.raises(EnergyFlowError, match=r"old\.pt"):
        _imported(file, config)
    assert not proof.exists()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"text_pairs": None}, "'text_pairs'"),
        ({"text_pairs": []}, "'text_pairs'"),
        ({"text_pairs": [*TEXTS[:2], ("one", 2)]}, r"text_pairs\[2\]"),
        ({"text_pairs": [*TEXTS[:2], ("one", " ")]}, r"text_pairs\[2\]"),
        ({"text_pairs": [*TEXTS[:2], ("one", "two", "three")]}, r"text_pairs\[2\]"),
        ({"text_pairs": [*TEXTS[:2], {"input": "one"}]}, r"text_pairs\[2\]"),
        ({"text_pairs": [*TEXTS[:2], "ab"]}, r"text_pairs\[2\]"),
        ({"text_pairs": TEXTS[:2]}, r"'input_embeddings' .* \[3, 768\]; 2 text pairs need \[2, 768\]"),
        ({"input_embeddings": None}, "'input_embeddings'"),
        ({"target_embeddings": ROWS.tolist()}, "'target_embeddings'"),
        ({"target_embeddings": ROWS.int()}, "'target_embeddings'"),
        ({"target_embeddings": ROWS[:, :512]}, r"'target_embeddings' .* \[3, 512\]"),
        ({"input_embeddings": ROWS * torch.tensor([[1.0], [0.0], [1.0]])}, r"input_embeddings\[1\]"),
        ({"target_embeddings": ROWS * torch.tensor([[1.0], [1.0], [torch.nan]])}, r"target_embeddings\[2\]"),
    ],
)
def test_what_is_wrong_in_an_old_file_is_named_and_nothing_is_left(
    config: EnergyConfig, tmp_path: Path, changed: dict[str, object], named: str
) -> None:
    file = _old_file(tmp_path, **changed)
    with pytest.raises(EnergyFlowError, match=named) as caught:
        _imported(file, config)
    assert str(file) in str(caught.value)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("content", [None, b"", b"no pickle", b"PK\x03\x04cut", [TEXTS]])
def test_an_old_file_that_is_missing_damaged_or_of_something_else_is_named(
    config: EnergyConfig, tmp_path: Path, content: object
) -> None:
    file = tmp_path / "old.pt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        torch.save(content, file)
    with pytest.raises(EnergyFlowError, match=r"old\.pt: No such file" if content is None else r"old\.pt"):
        _imported(file, config)
