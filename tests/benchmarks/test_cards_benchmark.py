"""The estimate beside measured peaks of a card: its section of the report."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.memory import cards
from efprof.model import NotRecorded


def test_a_row_has_both_errors_and_says_where_the_default_recording_had_no_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = SimpleNamespace(peak_reserved_bytes=cards.T4[0].reserved_bytes)
    estimate = SimpleNamespace(
        peak_allocated_bytes=round(1.1 * cards.T4[0].allocated_bytes),
        under=lambda _: SimpleNamespace(outcome=outcome),
    )

    def record(_: object, __: object, ___: int, *options: str) -> Any:
        if not options:
            raise NotRecorded("allocations-1.parquet is missing")
        return estimate

    monkeypatch.setattr(cards, "recorded", record)
    monkeypatch.setattr(cards, "T4", cards.T4[:1])
    report = tmp_path / "memory.md"
    report.write_text("# Title\n", encoding="utf-8")
    output = CliRunner().invoke(cards.main, ["--write", str(report)], catch_exceptions=False).output
    assert "| gpt2 * | 4 x 128 | 2,580 MiB | 2,838 MiB | +10.0 % | 2,902 MiB | 2,902 MiB | +0.0 % |" in output
    assert report.read_text(encoding="utf-8") == f"# Title\n\n{output}"


def test_the_section_is_written_anew_and_what_stands_by_hand_below_it_stays() -> None:
    first = cards.with_section("# Title\n", f"{cards.HEADING}\n\nold\n")
    assert first == f"# Title\n\n{cards.HEADING}\n\nold\n"
    again = cards.with_section(f"{first}\n### Why\n\nBy hand.\n", f"{cards.HEADING}\n\nnew\n")
    assert again == f"# Title\n\n{cards.HEADING}\n\nnew\n\n### Why\n\nBy hand.\n"
