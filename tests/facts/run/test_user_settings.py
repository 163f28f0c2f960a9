"""The user's keys for the batch and accumulation: found by name and number, never guessed."""

from pathlib import Path

import pytest

from efprof.facts.run.user_settings import UserSettings
from efprof.model import ConfigurationValue
from tests.support.builders import loader_built, make_steps, write_run


def settings_of(
    folder: Path, configuration: dict[str, str], *, samples: int = 16, micro_batches: int = 1
) -> UserSettings:
    steps = make_steps(3, samples=samples, micro_batches=micro_batches)
    return write_run(folder / "run", steps=steps, configuration=configuration).get(UserSettings)


@pytest.mark.parametrize(
    "key",
    [
        "batch_size",
        "batchSize",
        "per_device_train_batch_size",
        "data.loader.batch-size",
        "train_micro_batch_size_per_gpu",
    ],
)
def test_the_key_whose_number_is_the_recorded_batch_is_the_batch_size(tmp_path: Path, key: str) -> None:
    found = settings_of(tmp_path, {key: "16", "width": "16"}).micro_batch
    assert found == ConfigurationValue(name=key, old="16", new="16")


@pytest.mark.parametrize(
    "configuration",
    [
        {"batch_size": "32"},
        {"batch_size": "16", "train.batch_size": "16"},
        {"eval_batch_size": "16"},
        {"num_batches": "16"},
        {"batch_norm": "16"},
    ],
)
def test_another_number_two_keys_or_another_loops_key_is_no_batch_size(
    tmp_path: Path, configuration: dict[str, str]
) -> None:
    assert settings_of(tmp_path, configuration).micro_batch is None


def test_a_batch_is_found_by_its_file_and_the_loader_and_what_a_trainer_divides_is_no_micro_batch(
    tmp_path: Path,
) -> None:
    found = settings_of(tmp_path, {"train.toml:training.batch_size": "16", "model.toml:width": "16"}).micro_batch
    assert (found.name, found.file) == ("training.batch_size", "train.toml")
    assert (
        settings_of(tmp_path / "whole", {"batch_size": "16", "accumulation": "4"}, micro_batches=4).micro_batch is None
    )
    found = settings_of(tmp_path / "both", {"global_batch_size": "16", "micro_batch_size": "16"})
    assert found.micro_batch.name == "micro_batch_size"
    found = write_run(tmp_path / "third", events=[loader_built(batch_size=16)], configuration={"batch_size": "16"})
    assert found.get(UserSettings).micro_batch is not None


@pytest.mark.parametrize(
    "key",
    ["accumulate_grad_batches", "gradient_accumulation_steps", "grad_accum", "training.accumulation", "gradAccumSteps"],
)
def test_accumulation_is_the_key_with_the_recorded_number_of_micro_batches(tmp_path: Path, key: str) -> None:
    found = settings_of(tmp_path, {"batch_size": "4", key: "4", "depth": "4"}, micro_batches=4)
    assert found.accumulation.name == key
    assert found.micro_batch is not None


@pytest.mark.parametrize(
    ("key", "value", "new"),
    [
        ("gradient_checkpointing", "false", "true"),
        ("model.gradient_checkpointing.enabled", "False", "True"),
        ("use_activation_checkpointing", "no", "yes"),
    ],
)
def test_checkpointing_that_is_off_is_turned_on_in_the_same_spelling(
    tmp_path: Path, key: str, value: str, new: str
) -> None:
    assert settings_of(tmp_path, {key: value}).checkpointing == ConfigurationValue(name=key, old=value, new=new)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gradient_checkpointing", "true"),
        ("checkpoint", "false"),
        ("resume_checkpoint", "false"),
        ("checkpoint", "no"),
        ("model.disable_gradient_checkpointing", "false"),
        ("no_activation_checkpointing", "false"),
    ],
)
def test_checkpointing_that_is_on_and_files_of_weights_are_left_alone(tmp_path: Path, key: str, value: str) -> None:
    assert settings_of(tmp_path, {key: value}).checkpointing is None


def test_what_belongs_to_loops_that_do_not_train_is_never_offered(tmp_path: Path) -> None:
    others = {"eval.activation_checkpointing": "false", "test.grad_accum": "4"}
    found = settings_of(tmp_path, {"batch_size": "4", **others}, micro_batches=4)
    assert found.micro_batch is not None
    assert (found.checkpointing, found.accumulation) == (None, None)
