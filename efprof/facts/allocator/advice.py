"""Which settings of the allocator would serve a recorded program best, and which would hurt it or do nothing."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from efprof.facts.allocator.settings import AllocatorSettings, in_effect, parse_configuration
from efprof.facts.allocator.what_if import Outcome, WhatIf

CANDIDATES: Final = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "roundup_power2_divisions:8",
    "large_segment_size_mb:64",
)
"""Tried on every recording; the first is torch's default. More divisions than 8 round too little to matter."""

MIN_SAVED_SHARE: Final = 0.01
"""Of the peak: what is less may be the model's error, which is that large in one recording of twenty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A configuration, what the model says of it, and what a person should know of it before setting it."""

    configuration: str
    outcome: Outcome
    warnings: tuple[str, ...] = ()


def worth_a_try(what_if: WhatIf) -> tuple[str, ...]:
    """The candidates that are not on already."""
    recorded = in_effect(what_if.history.settings)
    return tuple(text for text in CANDIDATES if _settings(what_if, text) != recorded)


def try_configurations(what_if: WhatIf, configurations: Iterable[str]) -> list[Trial]:
    """Run each; raises BadConfiguration where torch would refuse one. A recorded limit stays where it names none."""
    parsed = [(text, _settings(what_if, text)) for text in configurations]
    return [
        Trial(configuration=text, outcome=what_if.run(settings), warnings=warnings_about(settings, what_if))
        for text, settings in parsed
    ]


def best_of(what_if: WhatIf, trials: Iterable[Trial]) -> Trial | None:
    """The one with the lowest peak, if it is clearly below the recorded one; among equals that with fewer calls.

    None where the recorded settings are as good as any.
    """
    recorded = what_if.compared.peak_reserved_bytes
    survives = [trial for trial in trials if not trial.outcome.is_out_of_memory]
    better = [trial for trial in survives if trial.outcome.peak_reserved_bytes <= (1 - MIN_SAVED_SHARE) * recorded]
    if what_if.recorded.is_out_of_memory:
        better = survives
    return min(
        better, key=lambda trial: (trial.outcome.peak_reserved_bytes, trial.outcome.calls.num_taken), default=None
    )


def warnings_about(settings: AllocatorSettings, what_if: WhatIf) -> tuple[str, ...]:
    """What hurts, and what does nothing."""
    warnings = []
    if settings == what_if.history.settings:
        warnings.append("These settings are on already.")
    if settings.expandable_segments and settings.max_split_bytes is not None:
        warnings.append(
            "expandable_segments and max_split_size_mb hurt together in most programs: a free stretch that has grown "
            "beyond the limit serves no small request any more, so new memory is mapped beside it."
        )
    if settings.garbage_collection_threshold and settings.memory_fraction is None:
        warnings.append(
            "garbage_collection_threshold does nothing without a memory fraction: set per_process_memory_fraction "
            "(torch 2.10) or call torch.cuda.set_per_process_memory_fraction."
        )
    if settings.memory_fraction is not None and what_if.capacity is None:
        warnings.append(
            "per_process_memory_fraction is left out: the recording does not tell how much memory the device has "
            "(of a snapshot, name it with --device-memory)."
        )
    if settings.large_segment_bytes != AllocatorSettings().large_segment_bytes:
        warnings.append("large_segment_size_mb is known to torch 2.11 and newer only.")
    return tuple(warnings)


def _settings(what_if: WhatIf, configuration: str) -> AllocatorSettings:
    settings = parse_configuration(configuration)
    return replace(settings, memory_fraction=settings.memory_fraction or what_if.history.settings.memory_fraction)
