"""How autograd's nodes and the profiler's operations are matched."""

import pytest

from efprof.facts.numbers.nonfinite_cause import operation_of, plain


@pytest.mark.parametrize(
    ("node", "operation"),
    [
        ("LogBackward0", "aten::log"),
        ("LogBackward0", "aten::log_"),
        ("DivBackward0", "aten::div"),
        ("LogSoftmaxBackward0", "aten::_log_softmax"),
        ("LinalgVectorNormBackward0", "aten::linalg_vector_norm"),
        ("NativeLayerNormBackward0", "aten::native_layer_norm"),
        ("PowBackward1", "aten::pow"),
    ],
)
def test_a_node_and_its_operation_have_one_name(node: str, operation: str) -> None:
    assert operation_of(node) == plain(operation)
