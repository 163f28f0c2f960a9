import torch

from energy_flow.late_read import LateRead


def test_values_arrive_once_in_the_order_they_were_sent_and_draining_gives_the_rest() -> None:
    reads: LateRead[str] = LateRead()
    reads.push("first", torch.tensor(3))
    reads.push("second", torch.tensor([1.0, 2.0], requires_grad=True))
    arrived = reads.arrived()
    assert [tag for tag, _ in arrived] == ["first", "second"]
    assert int(arrived[0][1]) == 3
    assert list(arrived[1][1]) == [1.0, 2.0]
    assert reads.arrived() == []
    assert reads.drain() == []
    reads: LateRead[int] = LateRead()
    reads.push(1, torch.tensor(5))
    assert [(tag, int(value)) for tag, value in reads.drain()] == [(1, 5)]
    reads: LateRead[int] = LateRead()
    reads.push(1, torch.empty((), device="meta"))
    assert reads.arrived() == []
