"""Who holds tensors: found by name, and let go again."""

import asyncio
import collections
import queue
import sys
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest
import torch

from efprof.artifacts.holders import Count, Counted, Moment, read_counts
from efprof.recorder.holders import holder_count as census_module
from efprof.recorder.holders.holder_count import Census
from efprof.recorder.holders.paths import Held
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import LineWriter, RankFolder
from tests.recorder.recording import Recorded, record_here
from tests.recorder.training import make_weight

HOARD: list[torch.Tensor] = []


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time enough to count pytest's own heap on a busy machine."""
    monkeypatch.setattr(census_module, "MAX_SECONDS", 20.0)


class Trainer:
    """Keeps every loss."""

    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []
        self.metrics: dict[str, list[torch.Tensor]] = {"loss": []}


class Window:
    """Keeps the last tensors."""

    def __init__(self, most: int) -> None:
        self.window: collections.deque[torch.Tensor] = collections.deque(maxlen=most)


@dataclass(frozen=True)
class Grown:
    """A holder at two counts."""

    before: Counted
    after: Counted

    @property
    def num_bytes(self) -> int:
        return self.after.tensor_bytes - self.before.tensor_bytes

    @property
    def graph_nodes(self) -> int:
        return self.after.graph_nodes - self.before.graph_nodes

    @property
    def length(self) -> int:
        return self.after.length - self.before.length


def count(tmp_path: Path) -> dict[tuple[str, str], Held]:
    sites = Sites(Path(__file__).parents[3], LineWriter(RankFolder(tmp_path), "sources.jsonl"))
    return Census(sites).count()


def big_loss(weight: torch.Tensor) -> torch.Tensor:
    """A loss whose graph keeps 40 kB."""
    return (weight * torch.ones(10_000)).square().mean()


# What is counted lies in functions without an assert: pytest rewrites those to call `locals()`, and the census
# leaves functions alone that do.


FITS = "<ipython-input-2-abc>"
TRAINER_IN_A_CELL = """class Trainer:
    def __init__(self):
        self.losses = [torch.ones(8)]
"""


def test_what_the_variables_of_a_notebook_keep_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    vars(main).update(count=lambda: count(tmp_path), torch=torch)
    exec(compile(TRAINER_IN_A_CELL, "<ipython-input-1-abc>", "exec"), vars(main))
    exec(compile("trainer, kept = Trainer(), [torch.ones(8)]\nheld = count()", FITS, "exec"), vars(main))
    held = vars(main)["held"]
    assert held["global", "__main__.kept"].file == FITS
    assert held["attribute", "Trainer.losses"].file == "<ipython-input-1-abc>"


def fail_with_activations(weight: torch.Tensor) -> None:
    activations = big_loss(weight)
    raise ValueError(f"{activations.dim()}")


def keep_errors(tmp_path: Path) -> dict[tuple[str, str], Held]:
    weight = torch.ones(1, requires_grad=True)
    failures = []
    history = [big_loss(weight)]
    for _ in range(3):
        try:
            fail_with_activations(weight)
        except ValueError as error:
            failures.append(error)
    held = count(tmp_path)
    failures.clear()
    history.clear()
    return held


def keep_losses(tmp_path: Path) -> dict[tuple[str, str], Held]:
    weight = torch.ones(1, requires_grad=True)
    history = [big_loss(weight) for _ in range(3)]
    held = count(tmp_path)
    history.clear()
    return held


def test_a_kept_error_keeps_the_variables_of_the_functions_it_came_through(tmp_path: Path) -> None:
    held = keep_errors(tmp_path)
    assert held["local", "keep_errors.failures"].tensors == 6, "of each error the result, and the argument"
    assert held["local", "keep_errors.failures"].graph_bytes >= 3 * 40_000
    assert held["local", "keep_errors.history"].tensors == 1


def test_a_local_list_is_counted_with_its_tensors_bytes_and_graph(tmp_path: Path) -> None:
    held = keep_losses(tmp_path)["local", "keep_losses.history"]
    assert (held.tensors, held.length, held.type) == (3, 3, "list")
    assert held.graph_nodes >= 9
    assert held.graph_bytes > 3 * 40_000
    assert held.file == __file__


def drop_after_counting(tmp_path: Path) -> tuple[int, "weakref.ref[torch.Tensor]", "weakref.ref[torch.Tensor]"]:
    kept, listed = torch.ones(3), [torch.ones(3)]
    refs = weakref.ref(kept), weakref.ref(listed[0])
    num_held = len(count(tmp_path))
    del kept
    listed.clear()
    return num_held, *refs


def keep_views(tmp_path: Path) -> dict[tuple[str, str], Held]:
    """Made without gradients, of a parameter that an optimizer has stepped since."""
    weight = torch.ones(100, 100, requires_grad=True)
    with torch.no_grad():
        views = [weight[0]]
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="no_grad"):
        assert views[0].grad_fn
    return count(tmp_path)


def test_a_view_of_which_torch_tells_no_graph_is_counted_all_the_same(tmp_path: Path) -> None:
    assert keep_views(tmp_path)["local", "keep_views.views"].tensors == 1


def test_the_count_keeps_nothing_alive(tmp_path: Path) -> None:
    num_held, kept, listed = drop_after_counting(tmp_path)
    assert num_held >= 2
    assert kept() is None
    assert listed() is None


def drop_while_running(tmp_path: Path) -> bool:
    kept = torch.ones(3)
    last = weakref.ref(kept)
    count(tmp_path)
    del kept
    return last() is None  # this frame still runs, and might keep a snapshot of its locals


def test_a_counted_frame_keeps_no_snapshot_of_its_locals(tmp_path: Path) -> None:
    assert drop_while_running(tmp_path)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="from 3.13 on, locals() returns a copy")
def test_a_dict_of_locals_that_the_program_holds_is_not_touched(tmp_path: Path) -> None:
    def train(rate: float) -> dict[str, object]:
        settings = locals()
        later = torch.ones(1) * rate
        count(tmp_path)
        del later
        return settings

    assert train(0.1) == {"rate": 0.1, "tmp_path": tmp_path}


def count_beside_vars(tmp_path: Path) -> dict[tuple[str, str], Held]:
    arguments, model = vars(Trainer()), torch.nn.ReLU()
    model.eval()
    kept = torch.ones(3)
    held = count(tmp_path)
    del arguments, model, kept
    return held


def test_a_function_that_asks_for_another_objects_variables_or_evaluates_a_model_is_counted(tmp_path: Path) -> None:
    assert ("local", "count_beside_vars.kept") in count_beside_vars(tmp_path)


class Lazy:
    """Loads something costly at the first touch of any attribute."""

    def __init__(self) -> None:
        self.tensor = torch.ones(3)

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"the census asked for {name}")


def keep_a_proxy(tmp_path: Path) -> dict[tuple[str, str], Held]:
    proxy = Lazy()
    held = count(tmp_path)
    del proxy
    return held


def test_a_lazy_proxy_is_not_woken(tmp_path: Path) -> None:
    assert ("attribute", "Lazy.tensor") in keep_a_proxy(tmp_path)


class Awaited(asyncio.Future[None]):
    """Python hides the dict that its attributes lie in."""


def keep_a_future(tmp_path: Path) -> dict[tuple[str, str], Held]:
    losses, loop = [torch.ones(3)], asyncio.new_event_loop()
    future = Awaited(loop=loop)
    try:
        return count(tmp_path)
    finally:
        loop.close()
        del losses, future


def test_what_hides_its_attributes_is_passed_over(tmp_path: Path) -> None:
    assert ("local", "keep_a_future.losses") in keep_a_future(tmp_path)


def keep_in(trainer: Trainer, hoard: Callable[[torch.Tensor], object], tmp_path: Path) -> dict[str, Grown]:
    """With `trainer` among the locals, as it is in a program."""
    grown = growth(tmp_path, hoard)
    del trainer
    return grown


def growth(tmp_path: Path, hoard: Callable[[torch.Tensor], object]) -> dict[str, Grown]:
    """By path: what grew in a training of 42 steps that calls `hoard` with each loss."""

    def train() -> None:
        weight, optimizer = make_weight()
        for _ in range(42):
            loss = big_loss(weight)
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            optimizer.step()
            hoard(loss)

    return grown_in(record_here(tmp_path, train))


def grown_in(recorded: Recorded) -> dict[str, Grown]:
    """By path: what the second count tells more of than the first one."""
    before, after = ({one.path: one for one in count.holders} for count in counts_of(recorded)[:2])
    grown = {path: Grown(before[path], one) for path, one in after.items() if path in before}
    return {path: one for path, one in grown.items() if one.num_bytes or one.graph_nodes}


def counts_of(recorded: Recorded, moment: Moment = "step") -> list[Count]:
    return [count for count in read_counts(recorded.rank) if count.moment == moment]


def test_a_growing_attribute_is_named(tmp_path: Path) -> None:
    trainer = Trainer()
    grown = keep_in(trainer, trainer.losses.append, tmp_path)["Trainer.losses"]
    holder = grown.after
    assert (holder.scope, holder.owner, holder.name) == ("attribute", "Trainer", "losses")
    assert grown.length == 20
    assert holder.graph_bytes - grown.before.graph_bytes >= 20 * 40_000


def test_a_growing_entry_of_a_dict_is_named(tmp_path: Path) -> None:
    trainer = Trainer()
    assert "Trainer.metrics['loss']" in keep_in(trainer, trainer.metrics["loss"].append, tmp_path)


def test_a_growing_global_is_named(tmp_path: Path) -> None:
    try:
        holder = growth(tmp_path, HOARD.append)["tests.recorder.holders.test_holder_count.HOARD"].after
    finally:
        HOARD.clear()
    assert (holder.scope, holder.file) == ("global", "tests/recorder/holders/test_holder_count.py")


def test_a_running_total_is_named_by_its_growing_graph(tmp_path: Path) -> None:
    def train() -> None:
        weight, optimizer = make_weight()
        total = torch.zeros(())
        for _ in range(42):
            loss = big_loss(weight)
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            optimizer.step()
            total = total + loss

    (grown,) = [one for one in grown_in(record_here(tmp_path, train)).values() if one.after.name == "total"]
    assert (grown.before.tensors, grown.after.tensors) == (1, 1)
    assert grown.graph_nodes >= 20


def collector() -> Callable[[torch.Tensor], None]:
    """A function that keeps what it is given in its closure."""
    seen: list[torch.Tensor] = []
    return lambda loss: seen.append(loss)


def keep_by_function(tmp_path: Path, hoard: Callable[[torch.Tensor], object]) -> dict[str, Grown]:
    """With the function among the locals, as it is in a program."""
    grown = growth(tmp_path, hoard)
    del hoard
    return grown


def test_a_growing_variable_of_a_closure_is_named(tmp_path: Path) -> None:
    holder = keep_by_function(tmp_path, collector())["collector.seen"].after
    assert (holder.scope, holder.name, holder.file) == ("local", "seen", "tests/recorder/holders/test_holder_count.py")


def keep_in_default(loss: torch.Tensor, kept: list[torch.Tensor] = []) -> None:  # noqa: B006 - the fault it is about
    kept.append(loss)


def test_a_growing_default_argument_is_named(tmp_path: Path) -> None:
    assert "keep_in_default.kept" in keep_by_function(tmp_path, keep_in_default)


class Shared:
    """Keeps what all its instances were given."""

    losses: ClassVar[list[torch.Tensor]] = []


def test_a_growing_attribute_of_a_class_is_named(tmp_path: Path) -> None:
    try:
        grown = growth(tmp_path, Shared.losses.append)  # not in the assert, which would keep the list in a local
        assert "Shared.losses" in grown
    finally:
        Shared.losses.clear()


@dataclass(slots=True)
class Slotted:
    """Has no `__dict__`."""

    losses: list[torch.Tensor] = field(default_factory=list)
    unset: int = field(init=False)


SLOTTED = Slotted()


def test_a_growing_slot_is_named(tmp_path: Path) -> None:
    try:
        grown = growth(tmp_path, SLOTTED.losses.append)
        assert "Slotted.losses" in grown
    finally:
        SLOTTED.losses.clear()


def keeping() -> Generator[None, torch.Tensor, None]:
    """Keeps what is sent to it in a local."""
    kept = []
    while True:
        kept.append((yield))


def keep_by_generator(tmp_path: Path) -> dict[str, Grown]:
    """With the generator among the locals."""
    generator = keeping()
    next(generator)
    return growth(tmp_path, lambda loss: generator.send(loss))


def test_a_growing_local_of_a_generator_is_named(tmp_path: Path) -> None:
    assert "keeping.kept" in keep_by_generator(tmp_path)


def keep_by_loop(tmp_path: Path) -> dict[str, Grown]:
    """With a generator that only the loop through it knows."""

    def batches() -> Generator[torch.Tensor]:
        given = []
        for _ in range(42):
            given.append(torch.ones(10_000))
            yield given[-1]

    def train() -> None:
        weight, optimizer = make_weight()
        for batch in batches():
            optimizer.zero_grad()
            (weight * batch).sum().backward()
            optimizer.step()

    return grown_in(record_here(tmp_path, train))


def test_a_growing_local_of_a_generator_that_no_variable_holds_is_named(tmp_path: Path) -> None:
    grown = keep_by_loop(tmp_path)["keep_by_loop.<locals>.batches.given"]
    holder = grown.after
    assert holder.tensors - grown.before.tensors == 20, "each counted once"
    assert (holder.scope, holder.name, holder.file) == ("local", "given", "tests/recorder/holders/test_holder_count.py")


def count_with_a_generator(tmp_path: Path) -> dict[tuple[str, str], Held]:
    """Within one that runs, and with one that a variable holds."""

    def running() -> Generator[int]:
        kept = torch.ones(3)
        yield len(held.update(count(tmp_path)) or held)
        del kept

    held: dict[tuple[str, str], Held] = {}
    named = keeping()
    next(named)
    named.send(torch.ones(3))
    next(running())
    named.close()
    return held


def test_a_generator_that_runs_or_has_a_name_is_counted_once(tmp_path: Path) -> None:
    held = {path: one.tensors for (_, path), one in count_with_a_generator(tmp_path).items()}
    assert held["keeping.kept"] == 1
    assert held["count_with_a_generator.<locals>.running.kept"] == 1


class Bank(torch.nn.Module):
    """Keeps keys in a buffer."""

    keys: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(0))
        self.register_buffer("mask_1", torch.zeros(10))
        self.scale = torch.nn.Parameter(torch.ones(5))

    def keep(self, loss: torch.Tensor) -> None:
        self.keys = torch.cat([self.keys, torch.ones(1000) * loss.detach()])


def keep_in_buffer(tmp_path: Path) -> dict[str, Grown]:
    bank = Bank()
    return growth(tmp_path, lambda loss: bank.keep(loss))


def test_a_growing_buffer_of_a_module_is_named_as_the_program_does(tmp_path: Path) -> None:
    grown = keep_in_buffer(tmp_path)
    holder = grown["Bank.keys"].after
    assert (holder.scope, holder.owner, holder.name, holder.type) == ("attribute", "Bank", "keys", "Tensor")
    assert "Bank._buffers" not in grown, "it is counted once"


def count_bank(tmp_path: Path) -> dict[tuple[str, str], Held]:
    bank = Bank()
    held = count(tmp_path)
    del bank
    return held


def test_of_a_modules_tensors_those_that_are_one_of_many_stay_in_their_table(tmp_path: Path) -> None:
    held = count_bank(tmp_path)
    assert held["attribute", "Bank._buffers"].tensors == 1
    assert held["attribute", "Bank.scale"].tensor_bytes == 20
    assert ("attribute", "Bank._parameters") not in held


def keep_in_queue(tmp_path: Path) -> dict[str, Grown]:
    outbox: queue.Queue[torch.Tensor] = queue.Queue()
    return growth(tmp_path, lambda loss: outbox.put(loss))


def test_what_waits_in_a_queue_is_held_by_the_variable_of_the_queue(tmp_path: Path) -> None:
    grown = keep_in_queue(tmp_path)["keep_in_queue.outbox"]
    assert (grown.after.type, grown.after.name) == ("Queue", "outbox")
    assert grown.length == 20


def test_one_tensor_that_is_joined_with_every_next_is_named(tmp_path: Path) -> None:
    def train() -> None:
        weight, optimizer = make_weight()
        bank = torch.empty(0)
        for _ in range(42):
            optimizer.zero_grad()
            big_loss(weight).backward()
            optimizer.step()
            bank = torch.cat([bank, torch.ones(5_000)])

    (grown,) = [one for one in grown_in(record_here(tmp_path, train)).values() if one.after.name == "bank"]
    assert grown.num_bytes == 20 * 20_000


def test_a_deque_is_counted_with_its_limit_and_several_of_one_name_with_what_they_hold_together(
    tmp_path: Path,
) -> None:
    def train() -> None:
        weight, optimizer = make_weight()
        limited, endless = collections.deque[torch.Tensor](maxlen=500), collections.deque[torch.Tensor]()
        first, second = Window(300), Window(400)
        for _ in range(42):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
            for kept in (limited, endless, first.window, second.window):
                kept.append(torch.ones(10_000))

    holders = [one.after for one in grown_in(record_here(tmp_path, train)).values()]
    assert {holder.name: holder.max_length for holder in holders} == {"limited": 500, "endless": 0, "window": 700}


def test_what_a_finalizer_was_given_is_found(tmp_path: Path) -> None:
    trainer = Trainer()
    finalizers = [weakref.finalize(trainer, str, torch.ones(7)) for _ in range(3)]
    held = count(tmp_path)
    for finalizer in finalizers:
        finalizer.detach()
    assert held["global", "weakref.finalize"].tensors == 3
