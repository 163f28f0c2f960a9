"""What the hooks leave of torch and of the user's objects: everything as it was."""

import copy
import io
import pickle
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from efprof.artifacts.events import CollectorStopped
from efprof.recorder.hooks.loop_hooks import replace
from tests.recorder.recording import HARDLY_ANY_IN_FULL, open_session, record_here, running_session
from tests.recorder.training import make_loader, make_model, make_training, train, train_plainly

OWNERS = (
    torch,
    torch.Tensor,
    torch.autograd,
    torch.autograd.profiler.profile,
    torch.nn.utils,
    torch.nn.utils.clip_grad,
    torch._tensor_str,
    torch.nn.Sequential,
    torch.nn.Module,
    DataLoader,
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
)


def patched() -> list[dict[str, int]]:
    return [{name: id(value) for name, value in vars(owner).items()} for owner in OWNERS]


def num_global_hooks() -> int:
    from torch.nn.modules import module
    from torch.optim import optimizer

    tables = (
        module._global_forward_hooks, module._global_forward_pre_hooks,
        optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks,
    )  # fmt: skip
    return sum(len(table) for table in tables)


def test_the_users_objects_hold_nothing_of_the_recorder(tmp_path: Path) -> None:
    (model, optimizer), loader = make_training(), make_loader(5)
    stored = io.BytesIO()

    def train_and_store() -> None:
        train(model, loader, optimizer)
        torch.save({"model": model, "optimizer": optimizer.state_dict()}, stored)
        assert b"efprof" not in pickle.dumps((model, optimizer, loader))
        copied = copy.deepcopy(model)
        assert torch.equal(copied(torch.ones(1, 3)), model(torch.ones(1, 3)))
        assert not any("efprof" in name for thing in (model, optimizer, loader) for name in vars(thing))

    recorded = record_here(tmp_path, train_and_store)
    assert recorded.events(CollectorStopped) == []
    assert b"efprof" not in stored.getvalue()


def test_a_model_can_be_traced_while_it_is_watched(tmp_path: Path) -> None:
    model = make_model()
    unwatched = [str(node) for node in torch.fx.symbolic_trace(torch.nn.Sequential(model)).graph.nodes]
    traced: list[list[str]] = []

    def train_and_trace() -> None:
        train(model, make_loader(5), torch.optim.SGD(model.parameters(), lr=0.01))
        traced.append([str(node) for node in torch.fx.symbolic_trace(torch.nn.Sequential(model)).graph.nodes])

    record_here(tmp_path, train_and_trace)
    assert traced == [unwatched]


def test_light_steps_have_no_hooks_on_modules(tmp_path: Path) -> None:
    with running_session(tmp_path, overhead=HARDLY_ANY_IN_FULL) as session:
        at_start = num_global_hooks()
        train_plainly(25)
        assert session.loop.light.is_on
        assert num_global_hooks() == at_start - 2


def test_a_loader_that_makes_an_iterator_of_its_own_works(tmp_path: Path) -> None:
    class Endless(DataLoader[torch.Tensor]):
        def _get_iterator(self):  # type: ignore[no-untyped-def]
            return iter([torch.ones(2)])

    batches: list[torch.Tensor] = []
    record_here(tmp_path, lambda: batches.extend(Endless([torch.ones(1)])))  # type: ignore[arg-type]
    assert len(batches) == 1


def test_a_fault_in_the_loop_itself_ends_the_recording_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = patched(), num_global_hooks()
    session = open_session(tmp_path)
    session.start()
    monkeypatch.setattr(session.loop.steps, "note_memory", lambda *_: 1 / 0)
    train_plainly(5)
    assert (patched(), num_global_hooks()) == before
    assert capsys.readouterr().err.count("efprof:") == 1


def test_torchscript_knows_what_is_replaced_as_torch_does(tmp_path: Path) -> None:
    from torch.jit import _builtins

    functions = {
        "aten::grad": (torch.autograd, "grad"),
        "aten::backward": (torch.autograd, "backward"),
    }
    known = dict(_builtins._get_builtin_table())

    def find() -> None:
        for name, (owner, attribute) in functions.items():
            assert _builtins._find_builtin(getattr(owner, attribute)) == name

    record_here(tmp_path, find)
    assert _builtins._get_builtin_table() == known


def test_what_the_program_has_changed_since_is_left_as_it_is() -> None:
    class Owner:
        def taken_out(self) -> None: ...

        def changed(self) -> None: ...

    undo = [replace(Owner, name, lambda self: None) for name in ("taken_out", "changed")]
    del Owner.taken_out
    of_the_program = Owner.changed = lambda self: None  # type: ignore[method-assign]
    for back in undo:
        back()
    assert "taken_out" not in vars(Owner)
    assert vars(Owner)["changed"] is of_the_program
