"""Each trap in the allocator's settings is found, and nothing else is."""

import subprocess
import sys

import pytest
import torch

from efprof.recorder.doctor.device import Version, find_traps, parse, refusals, settings_in_effect


def traps(text: str, version: Version = (2, 13)) -> list[str]:
    return [why for why, _ in find_traps({"PYTORCH_CUDA_ALLOC_CONF": text}, version)]


def of_variables(version: Version, **variables: str) -> list[tuple[str, str]]:
    return list(find_traps({f"PYTORCH_{name}": value for name, value in variables.items()}, version))


def test_settings_are_split_outside_of_brackets() -> None:
    text = "roundup_power2_divisions:[256:1,>:8], expandable_segments:True,lone"
    assert parse(text) == [("roundup_power2_divisions", "[256:1,>:8]"), ("expandable_segments", "True"), ("lone", "")]


@pytest.mark.parametrize(
    "text",
    ["", "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:[256:1,512:2,>:8]",
     "garbage_collection_threshold:0.8,per_process_memory_fraction:0.9", "backend:native,max_split_size_mb:64",
     "large_segment_size_mb:64,max_split_size_mb:64", "pinned_num_register_threads:8"],
)  # fmt: skip
def test_sound_settings_are_no_trap(text: str) -> None:
    assert traps(text) == []


REFUSALS = """
import os, sys, torch
from efprof.recorder.doctor.device import refusals
for text in sys.argv[1:]:
    if os.fork() == 0:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = text  # which torch reads when it is first asked
        print(*refusals(torch), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(not hasattr(torch._C, "_accelerator_getAllocatorSettings"), reason="needs torch 2.13")
def test_what_torch_refuses_is_told_in_its_words() -> None:
    texts = ["expandable_segments:true", "max_split_size_mb:10", "garbage_collection_threshold:2"]
    done = subprocess.run([sys.executable, "-c", REFUSALS, *texts], capture_output=True, text=True, check=True)
    assert ["torch refuses them: " in line for line in done.stdout.splitlines()] == [True] * 3


def test_what_torch_takes_is_not_refused() -> None:
    assert list(refusals(torch)) == []


def test_expandable_segments_and_a_largest_split_size_are_a_trap_together() -> None:
    (why,) = traps("expandable_segments:True,max_split_size_mb:128")
    assert "mapped anew although gigabytes are free" in why
    assert traps("expandable_segments:False,max_split_size_mb:128") == []


def test_a_collection_threshold_without_a_cap_does_nothing() -> None:
    assert "does nothing unless the program caps its memory" in traps("garbage_collection_threshold:0.8")[0]


def test_the_other_allocator_ignores_all_settings() -> None:
    assert traps("backend:cudaMallocAsync") == []
    assert traps("backend:cudaMallocAsync,expandable_segments:True") == [
        "The allocator cudaMallocAsync ignores expandable_segments."
    ]


@pytest.mark.parametrize("version", [(2, 8), (2, 9)])
def test_the_plain_variable_does_nothing_before_2_10(version: Version) -> None:
    ((why, advice),) = of_variables(version, ALLOC_CONF="expandable_segments:True")
    assert why.startswith("PYTORCH_ALLOC_CONF does nothing: torch 2.")
    assert advice == "Set PYTORCH_CUDA_ALLOC_CONF instead."
    assert settings_in_effect({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, version) == []


def test_the_plain_variable_works_from_2_10_on_unless_the_other_is_set_too() -> None:
    assert of_variables((2, 10), ALLOC_CONF="expandable_segments:True") == []
    ((why, _),) = of_variables((2, 10), ALLOC_CONF="expandable_segments:True", CUDA_ALLOC_CONF="max_split_size_mb:64")
    assert "PYTORCH_CUDA_ALLOC_CONF is set too and wins" in why
    assert of_variables((2, 10), ALLOC_CONF="max_split_size_mb:64", CUDA_ALLOC_CONF="max_split_size_mb:64") == []


def test_every_trap_says_what_to_do() -> None:
    text = "backend:cudaMallocAsync,expandable_segments:1,max_split_size_mb:1,garbage_collection_threshold:2"
    found = list(find_traps({"PYTORCH_CUDA_ALLOC_CONF": text, "PYTORCH_ALLOC_CONF": ""}, (2, 9)))
    assert len(found) >= 3
    assert all(why.endswith(".") and advice.endswith(".") for why, advice in found)
