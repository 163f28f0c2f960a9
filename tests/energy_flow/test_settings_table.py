from pathlib import Path

import pytest
from click.testing import CliRunner

from energy_flow.config_parsing import field_types
from energy_flow.settings_table import list_settings, markdown_table
from energy_flow.train import energy_flow

DOCUMENT = Path(__file__).parents[2] / "docs" / "energy_flow.md"


def test_every_setting_has_a_meaning_and_says_what_it_may_be() -> None:
    settings = list_settings()
    assert [setting.path for setting in settings] == list(field_types())
    assert all(len(setting.meaning) > 5 for setting in settings)
    (setting,) = (setting for setting in list_settings() if setting.path == "training.validation_share")
    assert setting.allowed == "number, 0 to 0.5"
    assert setting.values.keys() == {"debug", "cpu_demo", "experiment", "large"}
    assert markdown_table(list_settings()) in DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.parametrize("arguments", [["settings", "lattice.width"], ["settings", "lattice.width", "--markdown"]])
def test_the_command_shows_the_settings_asked_for(arguments: list[str]) -> None:
    result = CliRunner().invoke(energy_flow, arguments)
    assert "lattice.width" in result.output
    assert "flow.max_steps" not in result.output
