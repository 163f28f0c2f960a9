"""Data for the programs, each in the form that the program reads; the same at each call.

Each function is given the folder in which its program runs. What a checkout holds under the same name is replaced:
real text has so many words that a CPU trains for hours.
"""

import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

STAND_INS = Path(__file__).parent / "stand_ins"


def digits(directory: Path) -> None:
    _digits(directory.parent / "data" / "MNIST" / "raw", num_train=9_600)


def all_digits(directory: Path) -> None:
    """As many as MNIST has, since Lightning's example splits it by its size. Lightning itself tries `data` first."""
    _digits(directory.parents[1] / "Datasets" / "MNIST" / "raw", num_train=60_000)
    _digits(directory / "data" / "MNIST" / "raw", num_train=1_000)


def sine_waves(directory: Path) -> None:
    """By the program's own script."""
    subprocess.run([sys.executable, "generate_sine_wave.py"], cwd=directory, check=True)


def citations_of_gat(directory: Path) -> None:
    _cora(directory / "cora", num_papers=1_800, num_words=300)


def citations_of_pygcn(directory: Path) -> None:
    _cora(directory.parent / "data" / "cora", num_papers=2_700, num_words=1_433)


def sentences(directory: Path) -> None:
    say = _speaker()
    folder = directory / "data" / "wikitext-2"
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 4_500), ("valid", 300), ("test", 300)):
        _write(folder / f"{split}.txt", "\n".join(say() for _ in range(count)) + "\n")


def characters(directory: Path) -> None:
    """Then the program's own script makes integers of them."""
    say = _speaker()
    folder = directory / "data" / "shakespeare_char"
    _write(folder / "input.txt", "\n".join(say() for _ in range(6_000)))
    subprocess.run([sys.executable, "prepare.py"], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def names(directory: Path) -> None:
    chance = random.Random(0)
    made: set[str] = set()
    while len(made) < 8_000:
        made.add(_word(chance, min_syllables=2, max_syllables=5))
    _write(directory / "names.txt", "\n".join(sorted(made)))


def hourly_series(directory: Path) -> None:
    import pandas

    num_hours = 4_000
    chance = np.random.default_rng(0)
    hours = np.arange(num_hours)
    columns = {f"v{i}": np.sin(hours / (5 + i)) + chance.normal(0, 0.1, num_hours) for i in range(6)}
    columns["OT"] = np.cos(hours / 9) + chance.normal(0, 0.1, num_hours)
    table = pandas.DataFrame({"date": pandas.date_range("2020-01-01", periods=num_hours, freq="h"), **columns})
    (directory / "dataset").mkdir(exist_ok=True)
    table.to_csv(directory / "dataset" / "made.csv", index=False)


def paraphrases(directory: Path) -> None:
    """A small BERT of random weights, and stand-ins for the packages `datasets` and `evaluate`, which would fetch."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from torch import manual_seed
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    for name in ("datasets.py", "evaluate.py"):
        shutil.copy(STAND_INS / name, directory)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: number for number, word in enumerate([*special, ".", *_vocabulary(random.Random(0))])}
    words = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    ends = [(mark, vocabulary[mark]) for mark in ("[CLS]", "[SEP]")]
    words.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    marks = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep")}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, **marks)  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(directory / "bert-base-cased")
    manual_seed(0)
    shape = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
    )
    BertForSequenceClassification(shape).save_pretrained(directory / "bert-base-cased")


def _digits(folder: Path, num_train: int) -> None:
    """Ten random pictures under noise, in the files that MNIST has."""
    chance = np.random.default_rng(0)
    pictures = chance.random((10, 28, 28))
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", num_train), ("t10k", 1_000)):
        labels = chance.integers(0, 10, count)
        images = pictures[labels] * 200 + chance.random((count, 28, 28)) * 55
        _write_idx(folder / f"{split}-images-idx3-ubyte", images.astype(np.uint8))
        _write_idx(folder / f"{split}-labels-idx1-ubyte", labels.astype(np.uint8))


def _write_idx(file: Path, values: NDArray[np.uint8]) -> None:
    """MNIST's format: a magic number, the shape, the bytes."""
    head = struct.pack(f">I{values.ndim}I", 0x800 + values.ndim, *values.shape)
    file.write_bytes(head + values.tobytes())


def _cora(folder: Path, num_papers: int, num_words: int, num_classes: int = 7, num_links: int = 6_000) -> None:
    """Papers of seven subjects, each with words of its own, which mostly cite those of their subject."""
    chance = np.random.default_rng(0)
    subjects = chance.integers(0, num_classes, num_papers)
    word_shares = chance.random((num_classes, num_words)) * 0.06
    has_word = (chance.random((num_papers, num_words)) < word_shares[subjects]).astype(int)
    has_word[:, 0] = 1
    lines = []
    for paper, subject in enumerate(subjects):
        lines.append("\t".join([f"{paper + 100}", *map(str, has_word[paper]), f"C{subject}"]))
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "cora.content", "\n".join(lines) + "\n")
    links: set[tuple[int, int]] = set()
    while len(links) < num_links:
        cited, citing = map(int, chance.integers(0, num_papers, 2))
        if cited != citing and (subjects[cited] == subjects[citing] or chance.random() < 0.2):
            links.add((cited + 100, citing + 100))
    _write(folder / "cora.cites", "".join(f"{cited}\t{citing}\n" for cited, citing in sorted(links)))


def _speaker() -> Callable[[], str]:
    """Says a sentence of 5 to 25 words; the n-th word is n times as rare as the first."""
    chance = random.Random(0)
    words = _vocabulary(chance)
    weights = [1 / (place + 1) for place in range(len(words))]
    return lambda: " ".join(chance.choices(words, weights, k=chance.randint(5, 25))) + " ."


def _vocabulary(chance: random.Random) -> list[str]:
    return list(dict.fromkeys(_word(chance, min_syllables=1, max_syllables=4) for _ in range(1_500)))


def _word(chance: random.Random, *, min_syllables: int, max_syllables: int) -> str:
    syllables = range(chance.randint(min_syllables, max_syllables))
    return "".join(chance.choice("bcdfglmnprstvz") + chance.choice("aeiou") for _ in syllables)


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
