"""`Trainer(callbacks=[RecordTraining()])`: records a training of the Hugging Face Trainer, a step per `global_step`."""

from typing import Any, Unpack

from transformers import TrainerCallback

from efprof.recorder.launch.in_code import RecordOptions, TrainingMarks
from efprof.recorder.loop.user_marks import UserMarks


class RecordTraining(TrainerCallback):
    """Records each `train`, into a run of its own unless one is being recorded already.

    Takes the options of `efprof.record`. Evaluation belongs to no step. The Trainer has no event for an error: a
    training that raises is closed when the program ends, or when the next training begins.
    """

    def __init__(self, name: str | None = None, **wanted: Unpack[RecordOptions]) -> None:
        self._marks = TrainingMarks(name, **wanted)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._marks.end(RuntimeError("the training before this one did not reach its end"))
        self._marks.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._marks.mark(UserMarks.step_ended)

    def on_evaluate(self, *_: Any, **__: Any) -> None:
        self._marks.mark(UserMarks.begin_anew)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._marks.end()
