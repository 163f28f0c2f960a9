"""What is noted of each compilation."""

from efprof.artifacts.events import CollectorStopped, Compilation
from tests.recorder.conftest import Begin
from tests.recorder.recording import Recorded

COUNTING = """\
import torch

class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.num_calls = 0

    def forward(self, inputs):
        self.num_calls += 1
        return self.layer(inputs).sum() * self.num_calls

def train():
    model = torch.compile(Counting(), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        loss = model(torch.randn(3, 4))
        loss.backward()
        optimizer.step()

train()
"""


def test_the_function_the_line_the_time_and_the_guard_of_each_are_noted(begin: Begin) -> None:
    child = begin(COUNTING)
    assert child.wait() == 0, child.errors
    recorded = Recorded(folder=child.folder)
    assert recorded.events(CollectorStopped) == []
    events = [event for event in recorded.events(Compilation) if event.function == "forward"]
    assert [(event.site or "").split(":", 1)[1] for event in events] == ["17:train"] * 4
    assert all(event.seconds > 0 for event in events)
    assert events[0].reason is None
    for number, event in enumerate(events[1:]):
        assert event.reason is not None
        assert f"num_calls == {number}" in event.reason
