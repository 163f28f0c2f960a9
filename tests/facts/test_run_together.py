"""Whether one place of a program may come between two runs of another, by the text."""

import ast

import pytest

from efprof.facts.run_together import RunTogether

METER = """\
class Meter:
    def __init__(self):
        self.kept = []

    def note(self, x):
        self.kept.append(x)

    def empty(self):
        self.kept.clear()

"""
NOTE, EMPTY = ("train.py", 6, "Meter.note"), ("train.py", 9, "Meter.empty")
LOOP = "def main(meter):\n    for x in loader:\n        meter.note(x)\n"


def is_emptied(program: str, meter: str = METER) -> bool:
    """Whether the meter may be emptied between two notes of that program."""
    return RunTogether({"train.py": ast.parse(meter + program)}).may_alternate(EMPTY, NOTE)


@pytest.mark.parametrize(
    "program",
    [
        LOOP,
        LOOP + "    meter.empty()\n",
        LOOP.replace("    for", "    meter.empty()\n    for"),
        LOOP + "def unused(meter):\n    meter.empty()\n",
        LOOP + "main(Meter())\nfor word in words:\n    word.sort()\n",
        LOOP.replace("    for", "    for old in meters:\n        old.empty()\n    for"),
    ],
)
def test_what_no_loop_around_the_other_calls_does_not_come_between(program: str) -> None:
    assert not is_emptied(program)


@pytest.mark.parametrize(
    "program",
    [
        LOOP + "        meter.empty()\n",
        LOOP + "        finish(meter)\ndef finish(meter):\n    meter.empty()\n",
        LOOP + "    meter.empty()\nfor _ in range(3):\n    main(Meter())\n",
        "def epoch(meter):\n    meter.note(x)\nwhile True:\n    epoch(meter)\n    meter.empty()\n",
        LOOP + "        [one.empty() for one in meters]\n",
    ],
)
def test_what_a_loop_around_the_other_calls_comes_between(program: str) -> None:
    assert is_emptied(program)


@pytest.mark.parametrize(
    "program",
    [
        LOOP + "trainer.on_epoch_end(Meter.empty)\n",
        LOOP + "ends = {'epoch': 'empty'}\n",
        LOOP + "getattr(meter, f'em{rest}')()\n",
        LOOP + "from meters import empty as clean\n",
        LOOP + "@trainer.on('epoch')\ndef end():\n    meter.empty()\n",
        LOOP + "class End(library.Callback):\n    def on_end(self):\n        self.meter.empty()\n",
        LOOP + "class Meters:\n    def __exit__(self, *error):\n        self.meter.empty()\n",
        LOOP + "def batches():\n    for x in data:\n        yield x\n    meter.empty()\n",
        LOOP + "trainer.on_epoch_end(lambda: meter.empty())\n",
    ],
)
def test_what_somebody_else_may_call_comes_between(program: str) -> None:
    assert is_emptied(program)


@pytest.mark.parametrize(
    ("base", "is_called"),
    [("Callback", True), ("pl.LightningModule", True), ("nn.Module", False), ("Generic[T]", False), ("ABC", False)],
)
def test_a_class_of_a_library_may_call_what_it_does_not_promise_to_leave(base: str, is_called: bool) -> None:
    assert is_emptied(LOOP, METER.replace("Meter:", f"Meter({base}):")) is is_called


def test_a_class_inherits_what_a_library_may_call_from_the_programs_own_classes() -> None:
    assert is_emptied(LOOP + "class Own(Callback): ...\n", METER.replace("Meter:", "Meter(Own):"))


def test_where_no_loop_is_seen_to_run_the_other_somebody_else_runs_both() -> None:
    assert is_emptied("library.fit(Meter())\n")


def test_of_a_hook_any_loop_may_be_the_one_around_it() -> None:
    program = "def main(meter):\n    model.add_hook(meter.note)\n    for x in loader:\n        model(x)\n{}"
    assert is_emptied(program.format("        meter.empty()\n"))
    assert not is_emptied(program.format("    meter.empty()\n"))


def test_making_an_object_runs_what_its_classes_do_on_it() -> None:
    meter = METER.replace("self.kept = []", "self.empty()")
    assert not is_emptied(LOOP + "main(Meter())\n", meter)
    assert is_emptied(LOOP + "        meter = Own()\nclass Own(Meter): ...\n", meter)


SEEN = [
    (LOOP + "        meter.empty()\n", True),
    (LOOP + "trainer.on_epoch_end(Meter.empty)\n", True),
    (LOOP + "class End(library.Callback):\n    def on_epoch_end(self):\n        self.meter.empty()\n", True),
    (LOOP + "class End(library.Callback):\n    def finish(self):\n        self.meter.empty()\n", False),
    (LOOP + "    meter.empty()\n", False),
    ("library.fit(Meter())\n", False),
]


@pytest.mark.parametrize(("program", "is_seen"), SEEN)
def test_what_is_only_not_ruled_out_is_not_seen_to_come_between(program: str, is_seen: bool) -> None:
    assert RunTogether({"train.py": ast.parse(METER + program)}).is_seen_to_alternate(EMPTY, NOTE) is is_seen
