"""The dataset as training sees it: text pairs by key, with words dropped from the input where asked for."""

from __future__ import annotations

import logging
import multiprocessing
import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from energy_flow.data.batch import Batch
from energy_flow.data.corpus import TextPair, pairs_of_file, python_documentation_pairs
from energy_flow.data.dataset_folder import embedded, open_dataset, read_manifest, write_dataset
from energy_flow.data.teacher import Embeddings, Teacher, TeacherSettings, build_teacher
from energy_flow.energy_config import EnergyConfig
from energy_flow.errors import EnergyFlowError
from energy_flow.text_bridge.tokens import encode

_LOG = logging.getLogger(__name__)


class PairDataset(Dataset[Batch]):
    """The text pairs of a dataset folder.

    A key is `draw * len(dataset) + index`: a pair, and which of its random choices of dropped words to take. So
    what a key gives depends on the key and the seed alone, whichever worker fetches it; plain indices are draw 0.
    """

    def __init__(self, folder: Path, config: EnergyConfig) -> None:
        """Open `folder`; EnergyFlowError names it when it is no dataset."""
        self.folder, self.config = folder, config
        self.files = open_dataset(folder)
        self._teacher: Teacher | None = None
        if config.data.word_dropout > 0:
            self._teacher = self._build_teacher()

    def __len__(self) -> int:
        """Count the pairs."""
        return self.files.manifest.num_pairs

    def __getitem__(self, key: int | Sequence[int]) -> Batch:
        """One pair, its fields without the batch axis; or, as in NumPy, a batch of the pairs under a list of keys."""
        if isinstance(key, Sequence):
            return self._batch(key)
        return Batch(*(field[0] for field in self._batch([key])))

    def __getitems__(self, keys: Sequence[int]) -> list[Batch]:
        """The pairs under `keys` one by one, for a loader that stacks its samples itself; `self[keys]` is faster."""
        return [Batch(*fields) for fields in zip(*self._batch(keys), strict=True)]

    def __reduce__(self) -> tuple[type[PairDataset], tuple[Path, EnergyConfig]]:
        """Let a spawned worker map the files itself: pickling a mapped file would copy all of it."""
        return PairDataset, (self.folder, self.config)

    def pair(self, index: int) -> TextPair:
        """The texts of a pair, as they are stored."""
        return TextPair(self.files.text(2 * index), self.files.text(2 * index + 1))

    def _batch(self, keys: Sequence[int]) -> Batch:
        indices = [key % len(self) for key in keys]
        inputs = [self.files.text(2 * index) for index in indices]
        if self._teacher is None:
            input_embeddings: Embeddings = self.files.inputs[indices]
        else:
            inputs = [self._drop_words(text, key) for text, key in zip(inputs, keys, strict=True)]
            input_embeddings = self._teacher.embed(inputs)
        targets = [self.files.text(2 * index + 1) for index in indices]
        return Batch(
            input_embedding=torch.from_numpy(input_embeddings),
            target_embedding=torch.from_numpy(self.files.targets[indices]),
            input_tokens=self._tokens(inputs),
            target_tokens=self._tokens(targets),
        )

    def _build_teacher(self) -> Teacher | None:
        settings = self.files.manifest.teacher
        if not settings.is_unknown:
            return build_teacher(settings)
        if multiprocessing.parent_process() is None:  # a worker that opens the dataset again has nothing new to say
            _LOG.warning(
                "%s holds embeddings of an unknown teacher: data.word_dropout=%s is not applied, texts are used whole",
                self.folder,
                self.config.data.word_dropout,
            )
        return None

    def _tokens(self, texts: Sequence[str]) -> Tensor:
        return torch.from_numpy(np.stack([encode(text, self.config.bridge.max_bytes) for text in texts]))

    def _drop_words(self, text: str, key: int) -> str:
        chance = random.Random(f"{self.config.training.seed}/{key}")
        words = text.split()
        kept = [word for word in words if chance.random() >= self.config.data.word_dropout]
        return " ".join(kept or words[:1])


def build_dataset(config: EnergyConfig, folder: Path, pairs_file: Path | None = None) -> PairDataset:
    """Embed the pairs of `pairs_file`, or of Python's documentation, into `folder`, and open it."""
    pairs = python_documentation_pairs() if pairs_file is None else pairs_of_file(pairs_file)
    teacher = TeacherSettings.of(config.data)
    parts = embedded(islice(pairs, config.data.max_pairs), teacher)
    write_dataset(folder, parts, teacher, _source(config, pairs_file))
    return PairDataset(folder, config)


def open_or_build_dataset(config: EnergyConfig, folder: Path) -> PairDataset:
    """The dataset of Python's documentation in `folder`, built first where there is none that fits `config`."""
    try:
        manifest = read_manifest(folder)
    except EnergyFlowError:
        return build_dataset(config, folder)
    if manifest.source == _source(config, None) and manifest.teacher == TeacherSettings.of(config.data):
        return PairDataset(folder, config)
    return build_dataset(config, folder)


def _source(config: EnergyConfig, pairs_file: Path | None) -> str:
    name = "pydoc_data.topics" if pairs_file is None else pairs_file.name
    return f"{name}, first {config.data.max_pairs}"
