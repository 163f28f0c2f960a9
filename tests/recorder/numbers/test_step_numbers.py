"""How autograd's graph is gone through."""

import torch

from efprof.recorder.numbers.step_numbers import nodes_behind, nodes_of


def test_a_node_that_feeds_another_twice_is_met_once() -> None:
    grown = torch.ones(1, requires_grad=True).exp()
    nodes = list(nodes_behind(nodes_of(grown * grown), most=100))
    assert [node.name() for node in nodes[:2]] == ["MulBackward0", "ExpBackward0"]
    assert len(nodes) == 3, "the third is the leaf"


def test_a_walk_ends_where_enough_nodes_were_met() -> None:
    chain = torch.ones(1, requires_grad=True)
    for _ in range(20):
        chain = chain.exp()
    assert len(list(nodes_behind(nodes_of(chain), most=5))) == 5
