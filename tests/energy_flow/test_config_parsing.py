from pathlib import Path

import pytest

from energy_flow.config_parsing import field_types, load_config, with_field
from energy_flow.energy_config import NAMED_CONFIGS, EnergyConfig
from energy_flow.errors import EnergyFlowError


def _error_of(**arguments: object) -> str:
    with pytest.raises(EnergyFlowError) as caught:
        load_config("debug", **arguments)  # type: ignore[arg-type]
    return str(caught.value)


def test_an_assignment_sets_a_field_of_its_type() -> None:
    config = load_config(
        "debug",
        assignments=[
            "lattice.width=9",
            "flow.max_shift=0.5",
            "data.persistent_workers=false",
            "runtime.precision=bfloat16",
        ],
    )
    assert config.lattice.width == 9
    assert config.flow.max_shift == 0.5
    assert config.data.persistent_workers is False
    assert config.runtime.precision == "bfloat16"


def test_a_file_sets_fields_and_an_assignment_wins_over_it(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[lattice]\nwidth = 9\nheight = 7\n[flow]\nmax_shift = 1\n")
    config = load_config("debug", config_file=file, assignments=["lattice.width=11"])
    assert (config.lattice.width, config.lattice.height, config.flow.max_shift) == (11, 7, 1.0)


@pytest.mark.parametrize("name", sorted(NAMED_CONFIGS))
def test_every_field_of_every_named_configuration_is_accepted_as_text(name: str) -> None:
    config = load_config(name)
    changed = config
    for path in field_types():
        section, field = path.split(".")
        changed = with_field(changed, path, str(getattr(getattr(config, section), field)))
    assert changed == config


def test_the_sizes_that_the_issue_names_hold() -> None:
    def sizes(config: EnergyConfig) -> tuple[int, ...]:
        lattice, training = config.lattice, config.training
        return (
            *(lattice.width, lattice.height, lattice.depth, config.flow.max_flows),
            *(training.batch_size, training.accumulation, config.carrier.hidden_size),
        )

    assert sizes(NAMED_CONFIGS["experiment"]) == (50, 50, 20, 5000, 16, 1, 512)
    assert sizes(NAMED_CONFIGS["large"]) == (80, 80, 60, 20000, 64, 4, 1024)


def test_what_is_wrong_is_named_with_the_nearest_right_one() -> None:
    message = _error_of(assignments=["lattice.widht=8"])
    assert "'lattice.widht'" in message
    assert "'lattice.width'" in message
    assert "'data.num_workers'" in _error_of(assignments=["num_worker=2"])
    message = _error_of(assignments=["runtime.precision=bfloat"])
    assert "runtime.precision" in message
    assert "'bfloat16'" in message
    with pytest.raises(EnergyFlowError, match="'cpu_dmo'; did you mean 'cpu_demo'"):
        load_config("cpu_dmo")


@pytest.mark.parametrize(
    "assignment",
    [
        "lattice.width=0",
        "lattice.width=2.5",
        "lattice.width=wide",
        "data.word_dropout=1.5",
        "optimizer.learning_rate=nan",
        "data.pin_memory=maybe",
        "flow.max_advance=0.1",
        "flow.max_steps=1",
        "bridge.num_heads=3",
        "data.longest_ngram=1",
        "data.teacher=transformers",
        "scaler.init_scale=0.25",
    ],
)
def test_a_value_that_cannot_work_is_refused_by_the_name_of_its_field(assignment: str) -> None:
    assert assignment.partition("=")[0] in _error_of(assignments=[assignment])


def test_a_missing_file_and_an_assignment_without_a_value_are_refused(tmp_path: Path) -> None:
    assert "'lattice.width'" in _error_of(assignments=["lattice.width"])
    assert "none.toml" in _error_of(config_file=tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("width = 8\n", "'width'"),
        ("[latice]\nwidth = 8\n", "'latice.width'"),
        ("[lattice]\nwidth = true\n", "lattice.width"),
        ("[lattice\n", "run.toml"),
    ],
)
def test_a_wrong_file_is_refused_by_what_is_wrong_in_it(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    assert named in _error_of(config_file=file)
