import pytest

from efprof.facts.source.sources import Sources, place_of

SOURCE = """\
import torch

class Trainer:
    def step(self, batch):
        def closure():
            return loss(batch)
        total = [x.item() for x in batch]
        log(total)
        log(total)

values = [x.item() for x in data]
"""


@pytest.fixture
def sources():
    return Sources(files={"train.py": SOURCE.splitlines()})


@pytest.mark.parametrize(
    ("site", "function"),
    [
        ("train.py:8:Trainer.step", "Trainer.step"),
        ("train.py:8:step", "Trainer.step"),
        ("train.py:6:closure", "Trainer.step.<locals>.closure"),
        ("train.py:7:<listcomp>", "Trainer.step"),
        ("train.py:7:Trainer.step.<locals>.<listcomp>", "Trainer.step"),
        ("train.py:11:<listcomp>", "<module>"),
        ("train.py:11:<module>", "<module>"),
        ("train.py:8:another", "another"),
        ("other.py:8:step", "step"),
    ],
)
def test_a_line_names_its_function_as_python_does_whoever_recorded_it(sources, site, function):
    assert sources.line(site).function == function


def test_equal_lines_are_told_apart_and_a_snippet_holds_the_lines_around(sources):
    first, second = sources.line("train.py:8:step"), sources.line("train.py:9:step")
    assert (first.ordinal, second.ordinal) == (0, 1)
    assert first.key != second.key
    snippet = sources.snippet(sources.line("train.py:2:<module>"))
    assert (snippet.first_line, snippet.highlighted, len(snippet.lines)) == (1, 2, 5)


def test_code_without_its_text_is_not_the_user_s_and_a_file_of_another_python_has_an_empty_tree(sources):
    assert sources.is_user_code("train.py:1:<module>")
    assert not sources.is_user_code("/usr/lib/python3/json/decoder.py:1:decode")
    assert Sources(files={"train.py": ["def f(:"]}).tree("train.py").body == []
    assert place_of("C:/code/train.py:12:main") == "C:/code/train.py:12"


def test_a_function_that_ran_before_the_profiler_is_named_by_the_line_it_was_at(sources):
    assert sources.sites_of_frame("../train.py(8): step") == ["train.py:8:step"]
    assert sources.sites_of_frame("train.py(11): step") == []


def test_a_library_s_file_of_the_same_name_is_not_the_user_s(sources):
    assert sources.sites_of_frame("train.py(4): step") == ["train.py:4:step"]
    assert sources.sites_of_frame("/home/me/train.py(7): <listcomp>") == ["train.py:7:<listcomp>"]
    assert sources.sites_of_frame("library/train.py(10): step") == []
    assert sources.sites_of_frame("library/train.py(99): <lambda>") == []
    assert Sources(files={"train.py": []}).sites_of_frame("train.py(4): step") == ["train.py:4:step"]
