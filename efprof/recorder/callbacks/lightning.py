"""`Trainer(callbacks=[RecordTraining()])`: records a fit of Lightning, a step per update of its own count."""

from typing import Any, Unpack

try:
    from lightning.pytorch import Callback
except ImportError:  # the older name of the same package
    from pytorch_lightning import Callback  # type: ignore[assignment]

from efprof.recorder.launch.in_code import RecordOptions, TrainingMarks
from efprof.recorder.loop.user_marks import UserMarks


class RecordTraining(Callback):
    """Records each `fit`, into a run of its own unless one is being recorded already.

    Takes the options of `efprof.record`. Several updates of one batch, as by two optimizers under manual
    optimization, make one step; the sanity check and validation belong to none.
    """

    def __init__(self, name: str | None = None, **wanted: Unpack[RecordOptions]) -> None:
        self._marks = TrainingMarks(name, **wanted)
        self._num_updates = 0

    def setup(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Start the recording before the model is moved and the loaders are made."""
        if trainer.state.fn == "fit":
            self._marks.begin()

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """Begin the first step; its batch has been fetched already where Lightning fetches ahead."""
        self._num_updates = trainer.global_step
        self._marks.mark(UserMarks.begin_unless_fetched)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step != self._num_updates:
            self._num_updates = trainer.global_step
            self._marks.mark(UserMarks.step_ended)

    def on_validation_end(self, *_: Any) -> None:
        self._marks.mark(UserMarks.begin_anew)

    def on_fit_end(self, *_: Any) -> None:
        self._marks.end()

    def on_exception(self, *arguments: Any) -> None:
        self._marks.end(arguments[-1])
