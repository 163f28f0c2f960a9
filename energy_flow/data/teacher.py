"""Teachers: what turns a text into the embedding that the model learns to carry and to reach."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from energy_flow.energy_config import EMBEDDING_SIZE, DataConfig
from energy_flow.errors import EnergyFlowError

Embeddings = npt.NDArray[np.float32]

_BUCKETS_PER_NGRAM = 4
"""Numbers that one n-gram adds to. With one, two n-grams that meet in it cannot be told apart; spread over four,
all but surely they can, and the variance of a similarity falls with the number (Weinberger et al. 2009)."""


class Teacher(Protocol):
    """Anything that embeds texts."""

    def embed(self, texts: Sequence[str]) -> Embeddings:
        """Embeddings [texts, 768], float32, of unit length; the same text always gives the same numbers."""


_STORED = "stored"  # the kind of a teacher of which nothing but its embeddings is left


@dataclass(frozen=True, kw_only=True, slots=True)
class TeacherSettings:
    """Which teacher embedded a dataset; kept with it, so that texts changed on the fly are embedded alike."""

    kind: str
    path: str
    shortest_ngram: int
    longest_ngram: int

    @classmethod
    def of(cls, data: DataConfig) -> TeacherSettings:
        """The teacher that a configuration asks for."""
        return cls(
            kind=data.teacher,
            path=data.teacher_path,
            shortest_ngram=data.shortest_ngram,
            longest_ngram=data.longest_ngram,
        )

    @classmethod
    def unknown(cls) -> TeacherSettings:
        """The teacher of embeddings that came from elsewhere: it can embed nothing anew."""
        return cls(kind=_STORED, path="", shortest_ngram=0, longest_ngram=0)

    @property
    def is_unknown(self) -> bool:
        """Whether only the stored embeddings are left of it."""
        return self.kind == _STORED


def build_teacher(settings: TeacherSettings) -> Teacher:
    """The teacher that `settings` name; EnergyFlowError when they name none that can embed."""
    if settings.kind == "transformers":
        return TransformersTeacher(Path(settings.path))
    if settings.kind == "ngram":
        return NGramTeacher(settings.shortest_ngram, settings.longest_ngram)
    raise EnergyFlowError(f"the dataset's teacher '{settings.kind}' can embed no text; build the dataset again")


class NGramTeacher:
    """Hashes a text's character n-grams into 768 signed buckets: alike in spelling, alike in direction.

    It needs no weights and gives the same numbers in every process and on every machine.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        """Use n-grams of `shortest` to `longest` characters, word boundaries counted as one."""
        self.lengths = range(shortest, longest + 1)

    def embed(self, texts: Sequence[str]) -> Embeddings:
        """Embeddings [texts, 768] of unit length."""
        return np.stack([self._embed_one(text) for text in texts])

    def _embed_one(self, text: str) -> Embeddings:
        vector = [0.0] * EMBEDDING_SIZE
        for ngram, count in Counter(self._ngrams(text)).items():
            # A frequent n-gram says little more than a single one: the logarithm keeps it from drowning the rest.
            weight = 1.0 + math.log(count)
            for bucket, sign in _buckets(ngram):
                vector[bucket] += sign * weight
        embedding = np.array(vector, dtype=np.float32)
        length = np.linalg.norm(embedding)
        if length == 0:  # no n-gram at all: any fixed direction will do
            embedding[0] = length = np.float32(1.0)
        unit: Embeddings = embedding / length
        return unit

    def _ngrams(self, text: str) -> Iterator[str]:
        words = " " + re.sub(r"\s+", " ", text.casefold()).strip() + " "
        for length in self.lengths:
            for start in range(len(words) - length + 1):
                yield words[start : start + length]


class TransformersTeacher:
    """A sentence encoder from disk: the mean of its last hidden states over the text's tokens."""

    def __init__(self, folder: Path) -> None:
        """Load tokenizer and model from `folder`; nothing is ever downloaded."""
        try:
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            raise EnergyFlowError(
                "data.teacher=transformers needs the transformers package: pip install transformers"
            ) from error
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self.model: Any = AutoModel.from_pretrained(folder, local_files_only=True).eval()
        except (OSError, ValueError) as error:
            raise EnergyFlowError(
                f"data.teacher_path={folder} holds no transformers model; name a folder with its weights"
            ) from error
        if self.model.config.hidden_size != EMBEDDING_SIZE:
            raise EnergyFlowError(
                f"the model in {folder} gives {self.model.config.hidden_size} numbers; "
                f"name one that gives {EMBEDDING_SIZE}"
            )

    def embed(self, texts: Sequence[str]) -> Embeddings:
        """Embeddings [texts, 768] of unit length."""
        import torch

        tokens = self.tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")
        with torch.no_grad():
            hidden = self.model(**tokens).last_hidden_state
        kept = tokens["attention_mask"][..., None]
        mean = (hidden * kept).sum(1) / kept.sum(1)
        unit: Embeddings = torch.nn.functional.normalize(mean, dim=-1).numpy()
        return unit


def _buckets(ngram: str) -> Iterator[tuple[int, int]]:
    """The places in the embedding that an n-gram adds to, each with its sign.

    `hash()` differs from process to process; BLAKE2 does not. Two bytes per bucket: ten bits and more for the
    place, one for the sign.
    """
    digest = hashlib.blake2b(ngram.encode(), digest_size=2 * _BUCKETS_PER_NGRAM).digest()
    for first in range(0, len(digest), 2):
        value = digest[first] << 8 | digest[first + 1]
        yield (value >> 1) % EMBEDDING_SIZE, 1 if value & 1 else -1
