"""Whether what a report said of a program is true: judged by hand, by reading the program."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What was judged, by whom reads the program.

    It holds for reports with these findings and this verdict, whatever its figures. `answer` is a word or two for the
    table.
    """

    on: str
    verdict: str
    found: tuple[str, ...] = ()
    answer: str
    reason: str


JUDGEMENTS: dict[str, Judgement] = {}
