import pytest

from efprof.facts.host_tensors import is_cut_on_host
from efprof.facts.sources import Sources
from tests.builders import make_steps, write_run


def is_host(folder, *body, above="import torch"):
    """Of the last line of a function with that body."""
    text = "\n".join([above, "def get_batch(data, length):", *(f"    {line}" for line in body), ""])
    sources = write_run(folder / "run", steps=make_steps(1), sources={"train.py": text}).get(Sources)
    return is_cut_on_host(sources.line(f"train.py:{text.count(chr(10))}:get_batch"), sources)


@pytest.mark.parametrize(
    "cut",
    [
        "return torch.stack([data[s : s + length] for s in starts])",
        "return torch.stack([torch.from_numpy(data[s + 1 : s + 1 + length]) for s in starts])",
        "for s in starts: rows.append(data[s : s + length])",
        "return data[starts[0] : starts[0] + length]",
    ],
)
def test_a_batch_cut_at_random_starts_is_cut_on_the_host(tmp_path, cut):
    assert is_host(tmp_path, "starts = torch.randint(len(data) - length, (8,))", cut)


@pytest.mark.parametrize(
    "made",
    [
        "starts = torch.randint(9, (8,), device='cuda')",
        "starts = torch.randint(9, (8,), **options)",
        "starts = torch.randint(9, (8,)).cuda()",
        "starts = model(data)",
        "starts = mask.nonzero()",
        "pass",
    ],
)
def test_starts_that_may_lie_on_a_device_are_not(tmp_path, made):
    assert not is_host(tmp_path, made, "return torch.stack([data[s : s + length] for s in starts])")


def test_one_bound_of_a_device_is_enough(tmp_path):
    body = ("start = torch.randint(9, ())", "end = lengths.sum()", "return data[start:end]")
    assert not is_host(tmp_path, *body)


def test_plain_numbers_beside_them_change_nothing(tmp_path):
    body = ("start = torch.randint(9, ())", "size = int(length)", "return data[start : start + size]")
    assert is_host(tmp_path, *body)


def test_a_default_device_may_be_any(tmp_path):
    body = ("start = torch.randint(9, ())", "return data[start : start + length]")
    assert not is_host(tmp_path, *body, above="torch.set_default_device('cuda')")


def test_a_file_whose_text_is_not_known_is_not_judged(tmp_path):
    sources = write_run(tmp_path / "run", steps=make_steps(1), sources={}).get(Sources)
    assert not is_cut_on_host(sources.line("train.py:3:get_batch"), sources)
