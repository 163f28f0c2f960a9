import pytest

from efprof.facts.source.sources import Sources
from efprof.facts.time.scalar_reads import is_cut_on_host
from tests.support.builders import make_steps, write_run


def is_host(folder, *body, above="import torch", others=None):
    """Of the last line of a function with that body."""
    text = "\n".join([above, "def get_batch(data, length):", *(f"    {line}" for line in body), ""])
    sources = write_run(folder / "run", steps=make_steps(1), sources={"train.py": text} | (others or {})).get(Sources)
    return is_cut_on_host(sources.line(f"train.py:{text.count(chr(10))}:get_batch"), sources)


@pytest.mark.parametrize(
    "cut",
    [
        "return torch.stack([data[s : s + length] for s in starts])",
        "return torch.stack([torch.from_numpy(data[s + 1 : s + 1 + length]) for s in starts])",
        "for s in starts: rows.append(data[s : s + length])",
        "return data[starts[0] : starts[0] + length]",
        "return [data[int(s) : int(s) + length] for s in starts]",
        "return data[torch.tensor([3, 4])[1] : starts[0]]",
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
        "starts: torch.Tensor = mask.nonzero()",
        "starts = torch.tensor(mask)",
        "starts = torch.randint(9, (8,)); starts += offset.argmax()",
        "pass",
    ],
)
def test_starts_that_may_lie_on_a_device_are_not(tmp_path, made):
    assert not is_host(tmp_path, made, "return torch.stack([data[s : s + length] for s in starts])")


def test_one_bound_of_a_device_is_enough_and_plain_numbers_change_nothing(tmp_path):
    body = ("start = torch.randint(9, ())", "end = lengths.sum()", "return data[start:end]")
    assert not is_host(tmp_path, *body)
    body = ("start = torch.randint(9, ())", "size = int(length)", "return data[start : start + size]")
    assert is_host(tmp_path / "second", *body)


@pytest.mark.parametrize(
    "cut",
    [
        "return data[start : start + 3].narrow(0, 0, int(lengths[0]))",
        "return data[start : start + lengths.max().item()]",
        "return data[lengths.argmax() :][start : start + 3]",
    ],
)
def test_another_tensor_that_the_line_reads_may_lie_on_a_device(tmp_path, cut):
    assert not is_host(tmp_path, "start = torch.randint(9, ())", cut)


CUT = ("start = torch.randint(9, ())", "return data[start : start + length]")


def test_a_default_device_may_be_any(tmp_path):
    assert not is_host(tmp_path, *CUT, above="torch.set_default_device('cuda')")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch.set_default_device('cuda')", False),
        ("with torch.device('cuda'):\n    batch = get_batch(data, 9)", False),
        ("with self.device:\n    batch = get_batch(data, 9)", False),
        ("with torch.cuda.device(1):\n    batch = get_batch(data, 9)", True),
        ("with torch.no_grad():\n    batch = get_batch(data, 9)", True),
    ],
)
def test_another_file_may_set_the_device_as_well(tmp_path, text, expected):
    assert is_host(tmp_path, *CUT, others={"main.py": text}) is expected


def test_a_file_whose_text_is_not_known_is_not_judged(tmp_path):
    sources = write_run(tmp_path / "run", steps=make_steps(1), sources={}).get(Sources)
    assert not is_cut_on_host(sources.line("train.py:3:get_batch"), sources)
