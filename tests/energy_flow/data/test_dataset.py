import dataclasses
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from energy_flow.config_parsing import load_config
from energy_flow.data.dataset import PairDataset, build_dataset, open_or_build_dataset
from energy_flow.data.teacher import TeacherSettings, build_teacher
from energy_flow.energy_config import EnergyConfig
from energy_flow.errors import EnergyFlowError
from energy_flow.text_bridge.tokens import decode


@pytest.fixture
def copied(dataset: PairDataset, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dataset.folder, tmp_path / "copy"))


def test_a_users_pairs_are_read_back_as_they_were_written(
    config: EnergyConfig, pairs_file: Path, tmp_path: Path
) -> None:
    dataset = build_dataset(config, tmp_path / "new" / "data", pairs_file)
    teacher = build_teacher(TeacherSettings.of(config.data))
    assert [dataset.pair(0), dataset.pair(1)] == [("the cat sat", "the cat slept"), ("ein Käfer", "zwei Käfer")]
    sample = dataset[1]
    assert decode(sample.input_tokens.numpy()) == "ein Käfer"
    assert decode(sample.target_tokens.numpy()) == "zwei Käfer"
    assert np.array_equal(sample.input_embedding.numpy(), teacher.embed(["ein Käfer"])[0])
    assert np.array_equal(sample.target_embedding.numpy(), teacher.embed(["zwei Käfer"])[0])


def test_dropping_words_embeds_the_words_that_are_left(augmented_dataset: PairDataset) -> None:
    teacher = build_teacher(augmented_dataset.files.manifest.teacher)
    is_changed = []
    for index, sample in enumerate(augmented_dataset.__getitems__(range(20))):
        left = decode(sample.input_tokens.numpy())
        full = augmented_dataset.pair(index).input_text
        if len(full) <= augmented_dataset.config.bridge.max_bytes:
            assert set(left.split()) <= set(full.split())
            torch.testing.assert_close(sample.input_embedding, torch.from_numpy(teacher.embed([left])[0]))
        is_changed.append(not full.startswith(left))
    assert any(is_changed)


def test_a_key_gives_the_same_words_always_and_a_pickled_dataset_carries_no_data(
    augmented_dataset: PairDataset,
) -> None:
    num_pairs = len(augmented_dataset)
    draws = [augmented_dataset[3 + draw * num_pairs].input_embedding for draw in (0, 0, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not (torch.equal(draws[0], draws[2]) and torch.equal(draws[0], draws[3]))
    pickled = pickle.dumps(augmented_dataset)
    assert len(pickled) < 4096
    assert torch.equal(pickle.loads(pickled)[5].input_embedding, augmented_dataset[5].input_embedding)  # noqa: S301


def test_a_cached_dataset_is_used_as_it_is_and_rebuilt_when_its_settings_change(
    config: EnergyConfig, copied: Path
) -> None:
    built_at = (copied / "dataset.json").stat().st_mtime_ns
    open_or_build_dataset(config, copied)
    assert (copied / "dataset.json").stat().st_mtime_ns == built_at
    changed = load_config("debug", assignments=["data.max_pairs=10"])
    assert len(open_or_build_dataset(changed, copied)) == 10


@pytest.mark.parametrize(
    "name", ["texts.bin", "offsets.npy", "input_embeddings.npy", "target_embeddings.npy", "dataset.json"]
)
def test_a_dataset_with_a_missing_or_cut_file_is_refused_by_name_or_built_again(
    config: EnergyConfig, copied: Path, pairs_file: Path, name: str
) -> None:
    content = (copied / name).read_bytes()
    (copied / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(EnergyFlowError, match="build"):
        PairDataset(copied, config)
    assert len(build_dataset(config, copied, pairs_file)) == 2
    (copied / name).unlink()
    with pytest.raises(EnergyFlowError, match=str(copied)):
        PairDataset(copied, config)


@pytest.mark.parametrize(
    "present", [["dataset.json"], ["offsets.npy", "texts.bin"], ["dataset.json", "notes.txt", "texts.bin"]]
)
def test_no_folder_or_file_of_something_else_is_ever_replaced(
    config: EnergyConfig, pairs_file: Path, tmp_path: Path, present: list[str]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in present:
        (folder / name).touch()
    with pytest.raises(EnergyFlowError, match=f"{folder} is no dataset"):
        build_dataset(config, folder, pairs_file)
    assert sorted(path.name for path in folder.iterdir()) == present
    with pytest.raises(EnergyFlowError, match=f"cannot write the dataset to {pairs_file}: Not a directory"):
        build_dataset(config, pairs_file, pairs_file)


def test_a_dataset_of_a_later_format_is_refused_or_built_again(
    config: EnergyConfig, copied: Path, pairs_file: Path
) -> None:
    manifest = json.loads((copied / "dataset.json").read_text())
    (copied / "dataset.json").write_text(json.dumps({**manifest, "format_version": 99}))
    with pytest.raises(EnergyFlowError, match="format 99"):
        PairDataset(copied, config)
    assert len(build_dataset(config, copied, pairs_file)) == 2


def test_a_build_that_fails_leaves_nothing_behind(config: EnergyConfig, tmp_path: Path, pairs_file: Path) -> None:
    data = dataclasses.replace(config.data, teacher="transformers", teacher_path=str(tmp_path))
    with pytest.raises(EnergyFlowError):
        build_dataset(dataclasses.replace(config, data=data), tmp_path / "new", pairs_file)
    assert sorted(tmp_path.iterdir()) == [pairs_file]


def test_a_list_of_keys_gives_the_batch_that_a_plain_loader_would_stack(augmented_dataset: PairDataset) -> None:
    keys = [3, 7, 3 + len(augmented_dataset)]
    batch, stacked = augmented_dataset[keys], default_collate(augmented_dataset.__getitems__(keys))
    single = augmented_dataset[keys[1]]
    for field, stacked_field, single_field in zip(batch, stacked, single, strict=True):
        assert torch.equal(field, stacked_field)
        assert torch.equal(field[1], single_field)


def test_pairs_beyond_the_configured_number_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("one\ttwo\nthree\tfour\nno pair\n")
    config = load_config("debug", assignments=["data.max_pairs=2"])
    assert len(build_dataset(config, tmp_path / "data", file)) == 2
    with pytest.raises(EnergyFlowError, match=r"pairs\.tsv:3"):
        build_dataset(load_config("debug"), tmp_path / "data", file)
