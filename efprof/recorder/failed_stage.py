"""The stage that a stack stands in, or an error came from: the calls that make up a stage stand in it."""

import traceback
from types import CodeType, FrameType

import torch

from efprof.recorder import hooks
from efprof.recorder.frames import callers
from efprof.recorder.hooks import STEP_CODE

_CODES: dict[CodeType, str] = {
    torch.nn.Module._call_impl.__code__: "forward",
    STEP_CODE: "optimizer",
}

_WRAPPERS = {
    "iterate": "data",
    "fetch": "data",
    "backward": "backward",
    "grad": "backward",
    "update": "optimizer",
    "clip": "optimizer",
}
"""The functions that `hooks` puts in the place of others, by their names."""


def failed_stage(error: BaseException) -> str | None:
    """Of the error, or of the one that it came of, the innermost stage; None where it came from between them."""
    link: BaseException | None = error
    while link is not None:
        stages = [_stage_of(frame.f_code) for frame, _ in traceback.walk_tb(link.__traceback__)]
        found = next(filter(None, reversed(stages)), None)
        if found is not None:
            return found
        link = link.__context__
    return None


def stage_of_stack(frame: FrameType | None) -> str | None:
    """The innermost stage that this frame stands in; None where it is between them."""
    return next(filter(None, (_stage_of(caller.f_code) for caller in callers(frame))), None)


def _stage_of(code: CodeType) -> str | None:
    if code.co_filename == hooks.__file__:
        return _WRAPPERS.get(code.co_name)
    return _CODES.get(code)
