"""The values that an expression may have, and what Python's operators make of them."""

import ast
from collections.abc import Iterable
from itertools import islice
from typing import Final

Value = object
"""What a constant may be, or `UNKNOWN`."""
UNKNOWN: Final = object()
ANY: Final = frozenset({UNKNOWN})
MOST_VALUES = 16
"""More are as good as unknown."""


def limited(values: Iterable[Value]) -> frozenset[Value]:
    """All of them where they are few, else `ANY`."""
    found = frozenset(islice(values, MOST_VALUES * MOST_VALUES))
    return ANY if len(found) > MOST_VALUES else found


def applied(operator: ast.unaryop, value: Value) -> Value:
    """What `not` makes of it, and `-` of a whole number."""
    if isinstance(operator, ast.Not):
        return UNKNOWN if value is UNKNOWN else not value
    return -value if isinstance(operator, ast.USub) and isinstance(value, int) else UNKNOWN


def computed(operator: ast.operator, left: Value, right: Value) -> Value:
    """What `+`, `-`, `*`, `//` and `**` make of whole numbers."""
    if not (isinstance(left, int) and isinstance(right, int)):
        return UNKNOWN
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.FloorDiv() if right:
            return left // right
        case ast.Pow() if 0 <= right <= 64:
            return left**right
    return UNKNOWN


def compared(operator: ast.cmpop, left: Value, right: Value) -> Value:
    """Whether it holds; of which is greater, for whole numbers alone."""
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    match operator:
        case ast.Eq() | ast.Is():
            return left == right
        case ast.NotEq() | ast.IsNot():
            return left != right
    if not (isinstance(left, int) and isinstance(right, int)):
        return UNKNOWN
    match operator:
        case ast.Gt():
            return left > right
        case ast.GtE():
            return left >= right
        case ast.Lt():
            return left < right
        case ast.LtE():
            return left <= right
    return UNKNOWN
