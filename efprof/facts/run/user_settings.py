"""The settings of the user's own configuration that decide how much memory a step takes, under the user's keys."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Self, TypeVar

from efprof.artifacts.events import LoaderBuilt, events_of
from efprof.facts.run.run import Run
from efprof.model import ConfigurationValue, NotRecorded, frozen_dataclass

T = TypeVar("T")
OTHER_LOOPS = re.compile(r"eval(uat\w+)?|val(id\w*)?|test(ing)?|infer(ence)?|predict(ion)?|generat(e|ion)|serv(e|ing)")
"""Words of keys that belong to loops which do not train."""
BATCHES = frozenset({"batch", "batchsize", "minibatch", "microbatch", "bs", "bsz"})
BATCH_WORDS = BATCHES | {
    "size", "per", "device", "gpu", "train", "training", "micro", "mini", "local", "samples",
}  # fmt: skip
"""A key of these words alone, one of `BATCHES` among them, is the size of a micro-batch; `num_batches` or `batch_norm`
is none, nor is `global_batch_size`, which the trainer itself divides."""
ACCUMULATIONS = frozenset({"accumulate", "accumulation", "accum"})
ACCUMULATION_WORDS = ACCUMULATIONS | {
    "acc", "gradient", "gradients", "grad", "grads", "step", "steps", "batches", "iter", "iters", "num",
}  # fmt: skip
CHECKPOINTING = re.compile(
    r"(?!.*\b(no|not|non|disabled?|skip|without)\b)"
    r".*\b(gradient|grad|activations?|act) checkpoint(ing|s)?( enabled?| use| on)?"
)
"""As the words of a key, such as `model.gradient_checkpointing.enabled`; `checkpoint` alone most often names a file."""
ON_OF = {"false": "true", "no": "yes", "off": "on"}


@frozen_dataclass
class UserSettings:
    """Each is a value as the user wrote it, not changed yet; None where no key fits, or more than one does.

    `micro_batch` holds the samples of a micro-batch; `checkpointing` is the change of a switch that is off.
    `samples` and `micro_batches` are those of the commonest step, 0 where none tells.
    """

    samples: int
    micro_batches: int
    micro_batch: ConfigurationValue | None
    accumulation: ConfigurationValue | None
    checkpointing: ConfigurationValue | None

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Read what run.json keeps; without a finished step the loader tells how many samples a micro-batch has."""
        samples, parts = _usual_step(run)
        settings = [
            one
            for one in _settings(run.run_file.configuration)
            if not any(map(OTHER_LOOPS.fullmatch, _words(one.name)))
        ]
        words = {one.name: set(_words(one.name.rpartition(".")[2])) for one in settings}
        batches = [one for one in settings if words[one.name] <= BATCH_WORDS and words[one.name] & BATCHES]
        accumulations = [one for one in settings if words[one.name] <= ACCUMULATION_WORDS]
        return cls(
            samples=samples,
            micro_batches=parts,
            micro_batch=_only(one for one in batches if samples and one.old == str(samples // parts)),
            accumulation=_only(
                one
                for one in accumulations
                if (words[one.name] & ACCUMULATIONS or {"grad", "acc"} <= words[one.name]) and one.old == str(parts)
            ),
            checkpointing=_only(change for one in settings if (change := _checkpointing(one)) is not None),
        )

    @property
    def samples_per_micro_batch(self) -> int:
        """0 where no step tells."""
        return self.samples // self.micro_batches if self.micro_batches else 0


def _usual_step(run: Run) -> tuple[int, int]:
    """Samples and micro-batches of the commonest step; zeros where neither a step nor the one loader's size tells."""
    try:
        records, built = run.steps, events_of(run.rank_folder, LoaderBuilt)
    except NotRecorded:
        return 0, 0
    sizes = Counter((record.samples, max(1, record.micro_batches)) for record in records if record.samples)
    if sizes:
        return sizes.most_common(1)[0][0]
    loaders = {event.batch_size for event in built}
    size = loaders.pop() if len(loaders) == 1 and not records else None
    return (size, 1) if size else (0, 0)


def _settings(configuration: Mapping[str, str]) -> Iterator[ConfigurationValue]:
    """`file:key` where several files were kept."""
    for key, value in configuration.items():
        file, colon, name = key.partition(":")
        yield ConfigurationValue(name=name or key, old=value, new=value, file=file if colon else None)


def _words(name: str) -> list[str]:
    """`optim.gradAccum_steps` in words: optim, grad, accum, steps."""
    return re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower())


def _checkpointing(setting: ConfigurationValue) -> ConfigurationValue | None:
    opposite = ON_OF.get(setting.old.lower())
    if opposite is None or not CHECKPOINTING.fullmatch(" ".join(_words(setting.name))):
        return None
    return replace(setting, new=opposite.capitalize() if setting.old[0].isupper() else opposite)


def _only(found: Iterable[T]) -> T | None:
    each = list(found)
    return each[0] if len(each) == 1 else None
