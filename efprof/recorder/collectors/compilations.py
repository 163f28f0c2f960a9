"""Notes what `torch.compile` compiled, by its own metrics: which function, for how long, and by which failed guard."""

import sys

from efprof.artifacts.events import Compilation
from efprof.recorder.session.session import Session

METRICS = "torch._dynamo.utils"

MAX_REASON = 300
"""Letters of a guard, whose explanation goes on for lines."""


def start(session: Session) -> None:
    seen = set[tuple[str, int]]()
    last: tuple[int, str | None] | None = None
    """The step in which the last compilation began, and the line that ran then."""

    def note_new() -> None:
        """Of the last 64, which is all that torch keeps; not what was compiled before the recording."""
        metrics = sys.modules.get(METRICS)
        for one in metrics.get_compilation_metrics() if metrics else ():
            key = (str(one.compile_id), one.start_time_us)
            # Without a name it is of a backward graph, which was traced with its forward one.
            if key not in seen and last is not None and one.co_name:
                session.note(
                    Compilation(
                        step=last[0],
                        function=one.co_name,
                        site=last[1],
                        seconds=(one.duration_us or 0) / 1e6,
                        reason=(one.recompile_reason or "")[:MAX_REASON] or None,
                    )
                )
            seen.add(key)

    def began() -> None:
        nonlocal last
        note_new()
        last = session.loop.number, session.sites.of_caller()

    session.listen("compilations", compilation_began=began)
    session.on_end("compilations", note_new)
