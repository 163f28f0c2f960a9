"""What stands in a program's text bounds a container only as far as its counts leave that open."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from efprof.artifacts.holders import HolderCensus
from efprof.audits.growing_tensors import growing_tensors
from efprof.units import MIB
from tests.audits.growing_runs import census, leaking_steps
from tests.builders import write_run

CENSUS_STEPS = ((10, 14), (16, 20), (22, 26))
LOOP = """\
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--keep", type=int, default=None)
parser.add_argument("--clear-every", type=int, default=0)
parser.add_argument("--capacity", type=int, default=1000)
args = parser.parse_args()
HEALTHY = args.healthy
{before}
for epoch in range(args.epochs):
    {at_epoch}
    for step, x in enumerate(loader):
        loss = model(x)
        loss.backward()
        optimizer.step()
        {kept}
        {within}
    {after}
"""


def counted(sizes: Sequence[int] = (11, 15, 17, 21, 23, 27), **fields: object) -> list[HolderCensus]:
    """A global list with so many tensors of a mebibyte at each count; by default one more in every step."""
    found = []
    for (before, after), (first, last) in zip(zip(sizes[::2], sizes[1::2], strict=True), CENSUS_STEPS, strict=True):
        one = census(
            **{
                "scope": "global", "owner": "__main__", "path": "__main__.kept", "name": "kept",
                "graph_nodes_before": 0, "graph_nodes_after": 0, "graph_bytes_before": 0, "graph_bytes_after": 0,
                "tensors_before": before, "tensors_after": after, "length_before": before, "length_after": after,
                "tensor_bytes_before": before * MIB, "tensor_bytes_after": after * MIB, **fields,
            }
        )  # fmt: skip
        found.append(HolderCensus(step_before=first, step_after=last, holders=one.holders))
    return found


def is_leak(
    folder: Path,
    source: str,
    *options: str,
    censuses: Sequence[HolderCensus] | None = None,
    configuration: dict[str, str] | None = None,
) -> bool:
    """Whether the run of that program is told of."""
    run = write_run(
        folder,
        steps=leaking_steps(),
        sources={"train.py": source},
        censuses=counted() if censuses is None else censuses,
        command=["python", "train.py", *options],
        configuration=configuration or {},
    )
    return bool(growing_tensors(run).findings)


def program(**lines: str) -> str:
    """One that keeps a tensor of each step in a list, with these lines."""
    defaults = {"before": "kept = []", "at_epoch": "pass", "kept": "kept.append(x)", "within": "pass", "after": "pass"}
    return LOOP.format(**{**defaults, **lines})


@pytest.mark.parametrize(
    "lines",
    [
        {"within": "if HEALTHY: del kept[:-3]"},
        {"within": "if HEALTHY: del kept[:-500]"},
        {"within": "if args.healthy and len(kept) > 500: kept.pop(0)"},
        {"within": "if args.healthy: kept.clear()"},
        {"within": "if not args.healthy: continue\n        kept.clear()"},
        {"within": "if args.clear_every and step % args.clear_every == 0: kept.clear()"},
        {"within": "kept.clear() if HEALTHY else None"},
        {"within": "if settings.is_short: kept.clear()"},
        {"within": "if HEALTHY: trim(kept)\ndef trim(kept):\n    del kept[:-500]\nfor _ in ():\n    pass"},
        {"within": "if step % 5 == 0: kept.clear()"},
        {"within": "if step > 5: kept.pop(0)"},
        {"within": "if len(kept) > 9: kept.pop(0)"},
        {"within": "kept = kept[-9:]"},
        {"within": "kept = kept[-args.clear_every:]"},
        {"before": "kept = deque(maxlen=args.keep)"},
        {"before": "kept = deque(maxlen=9)"},
        {"before": "kept = deque(maxlen=args.keep if args.keep else None)"},
        {"after": "if HEALTHY: kept.clear()"},
        {"before": "kept = {}", "kept": "kept[step % 9] = x"},
    ],
)
def test_what_would_have_acted_by_now_and_did_not_is_no_bound(tmp_path: Path, lines: dict[str, str]) -> None:
    assert is_leak(tmp_path, program(**lines))


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        ({"before": "kept = deque(maxlen=args.capacity)"}, ()),
        ({"before": "kept = deque(maxlen=args.keep)"}, ("--keep", "500")),
        ({"before": "kept = deque(maxlen=args.keep)"}, ("--keep=500",)),
        ({"before": "kept = deque(maxlen=10 ** 6 // 2)"}, ()),
        ({"before": "kept = deque(maxlen=config.unknown)"}, ()),
        ({"within": "if len(kept) > args.capacity: kept.pop(0)"}, ()),
        ({"within": "if args.keep and len(kept) > args.keep: kept.pop(0)"}, ("--keep", "500")),
        ({"within": "while len(kept) > 500: kept.pop(0)"}, ()),
        ({"within": "if len(kept) < 500: continue\n        kept.pop(0)"}, ()),
        ({"within": "if HEALTHY: del kept[:-500]"}, ("--healthy",)),
        ({"within": "if args.clear_every and step % args.clear_every == 0: kept.clear()"}, ("--clear-every", "50")),
        ({"within": "if is_main_process and step % 50 == 0: kept.clear()"}, ()),
        ({"within": "if not step % 100: kept.clear()"}, ()),
        ({"within": "if step == len(loader) - 1: kept.clear()"}, ()),
        ({"within": "if step % 500 == 0: flush(kept)\ndef flush(kept):\n    kept.clear()\nfor _ in ():\n    pass"}, ()),
        ({"within": "for old in stale(kept): kept.remove(old); kept.pop(0)"}, ()),
        ({"at_epoch": "kept = []"}, ()),
        ({"at_epoch": "kept.clear()"}, ()),
        ({"after": "kept.clear()"}, ()),
        ({"after": "if epoch % 5 == 4: kept.clear()"}, ()),
        ({"kept": "if len(kept) < args.capacity: kept.append(x)"}, ()),
        ({"before": "kept = {}", "kept": "kept[step % 500] = x"}, ()),
        ({"before": "kept = {}", "kept": "kept[step] = x", "within": "kept.pop(step - 500, None)"}, ()),
    ],
)
def test_what_has_not_had_to_act_yet_is_a_bound(
    tmp_path: Path, lines: dict[str, str], options: tuple[str, ...]
) -> None:
    assert not is_leak(tmp_path, program(**lines), *options)


def test_a_count_that_fell_or_stood_still_shows_a_bound_at_work(tmp_path: Path) -> None:
    source = program(within="if full(kept): kept.clear()")
    assert is_leak(tmp_path / "rising", source)
    assert not is_leak(tmp_path / "fell", source, censuses=counted((11, 15, 3, 7, 9, 13)))
    assert not is_leak(tmp_path / "full", source, censuses=counted((11, 15, 15, 15, 15, 15), tensor_bytes_before=0))


def test_a_limit_is_compared_with_the_steps_of_what_keeps_several_entries_in_each(tmp_path: Path) -> None:
    """Twelve layers have a list each under one name."""
    per_layer = [12 * size for size in (11, 15, 17, 21, 23, 27)]
    assert not is_leak(tmp_path / "30", program(before="kept = deque(maxlen=30)"), censuses=counted(per_layer))
    assert is_leak(tmp_path / "9", program(before="kept = deque(maxlen=9)"), censuses=counted(per_layer))


def test_a_limit_in_a_configuration_file_counts(tmp_path: Path) -> None:
    source = program(before="kept = deque(maxlen=config.buffer_size)") + "config.buffer_size = None\n"
    assert is_leak(tmp_path / "none", source)
    assert not is_leak(tmp_path / "given", source, configuration={"data.buffer_size": "500"})


def test_what_was_counted_of_a_deque_goes_before_what_its_source_says(tmp_path: Path) -> None:
    unlimited = counted(type="deque", max_length=0)
    assert not is_leak(tmp_path / "unknown", program(before="kept = deque(maxlen=cfg.unknown)"))
    assert is_leak(tmp_path / "no limit", program(before="kept = deque(maxlen=cfg.unknown)"), censuses=unlimited)
    limited = counted(type="deque", max_length=500)
    assert not is_leak(tmp_path / "limited", program(before="kept = make(cfg)"), censuses=limited)


def test_a_deque_that_fills_memory_before_it_is_full_is_as_good_as_unlimited(tmp_path: Path) -> None:
    """It keeps a mebibyte of each step."""
    censuses = counted(type="deque", max_length=10**9)
    assert is_leak(tmp_path, program(before="kept = deque(maxlen=10**9)"), censuses=censuses)


def test_what_grows_within_a_full_deque_is_not_bounded_by_its_length(tmp_path: Path) -> None:
    """Nine lists, each of which gets longer."""
    full = counted(type="deque", max_length=9, length_before=9, length_after=9)
    assert is_leak(tmp_path, program(before="kept = make(cfg)"), censuses=full)


def test_a_method_of_the_steps_with_a_flag_is_no_bound_one_of_an_epoch_is(tmp_path: Path) -> None:
    text = """\
class Keeper(Callback):
    def on_step(self, x):
        self.kept.append(x)

    def {name}(self):
        if self.is_short:
            self.kept.clear()

library.fit(Keeper())
"""
    censuses = counted(scope="attribute", owner="Keeper", path="Keeper.kept")
    assert is_leak(tmp_path / "step", text.format(name="on_batch_end"), censuses=censuses)
    assert not is_leak(tmp_path / "epoch", text.format(name="on_epoch_end"), censuses=censuses)


def test_of_two_statements_the_one_that_the_command_comes_to_is_blamed(tmp_path: Path) -> None:
    source = program(kept="if sys.argv[1] == 'a': kept.append(x)\n        elif sys.argv[1] == 'b': kept.append(x)")
    for kind, line in (("a", 14), ("b", 15)):
        run = write_run(
            tmp_path / kind,
            steps=leaking_steps(),
            sources={"train.py": source},
            censuses=counted(),
            command=["python", "train.py", kind],
        )
        (finding,) = growing_tensors(run).findings
        assert finding.blame.line == line


MEMORY = """\
class Memory:
    def __init__(self, capacity{default}):
        self.kept, self.place, self.capacity = {made}, 0, capacity

    def is_full(self):
        return len(self.kept) >= self.capacity

    def push(self, x):
        {push}

    def flush(self):
        if self.rank == 0:
            write(self.kept)
        self.kept = []

memory = Memory({given})
for epoch in range(9):
    for step, x in enumerate(loader):
        model(x).backward()
        memory.push(x)
        {then}
    {after}
"""
IN_PLACE = (
    "if len(self.kept) < self.capacity:\n            self.kept.append(None)\n        self.kept[self.place] = x\n"
    "        self.place = (self.place + 1) % self.capacity"
)
UNLESS_FULL = "self.kept.append(x)\n        if not self.is_full():\n            return\n        self.kept.pop(0)"


@pytest.mark.parametrize(
    ("lines", "is_found"),
    [
        ({"push": IN_PLACE}, False),
        ({"push": IN_PLACE, "given": "capacity=9"}, True),
        ({"push": UNLESS_FULL}, False),
        ({"push": UNLESS_FULL, "given": "9"}, True),
        ({"made": "deque(maxlen=capacity)"}, False),
        ({"made": "deque(maxlen=capacity)", "given": "read()"}, False),
        ({"made": "deque(maxlen=capacity)", "default": "=None", "given": ""}, True),
        ({"then": "if (step + 1) % config.every == 0: memory.flush()"}, False),
        ({"then": "if config.every: memory.flush()"}, True),
        ({"after": "memory.flush()"}, False),
        ({}, True),
    ],
)
def test_a_buffer_with_a_capacity_fills_up_to_it(tmp_path: Path, lines: dict[str, str], is_found: bool) -> None:
    defaults = {"default": "", "made": "[]", "push": "self.kept.append(x)", "given": "1000"}
    source = MEMORY.format(**{**defaults, "then": "pass", "after": "pass", **lines})
    kind = "deque" if "deque" in source else "list"
    censuses = counted(scope="attribute", owner="Memory", path="Memory.kept", type=kind)
    assert is_leak(tmp_path, source, censuses=censuses) is is_found


def test_of_a_dictionary_of_lists_each_has_a_limit_of_its_own(tmp_path: Path) -> None:
    as_many = counted(type="defaultdict", length_before=4, length_after=4)
    for limit, is_found in ((100, False), (2, True)):
        source = program(before=f"kept = defaultdict(lambda: deque(maxlen={limit}))", kept="kept[step % 4].append(x)")
        assert is_leak(tmp_path / str(limit), source, censuses=as_many) is is_found
