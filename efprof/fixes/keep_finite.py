"""What keeps an operation finite: a bound of what it is given, an argument of its call, or what to do in words.

One table, by the operation, by what it was given, and by the precision; its causes are those of public reports.
"""

import ast
import math
import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from efprof.fixes.source_edit import as_receiver, replace_expression, replace_parts, set_arguments
from efprof.model import Fix, SourceFile, called_name, frozen_dataclass, nodes_on

SMALLEST = {"float16": 1e-4, "bfloat16": 1e-6, "float32": 1e-6, "float64": 1e-12}
"""The least operand that keeps the value and its gradient finite with room to spare; in float16 1e-5 is too low
(measured)."""
LARGEST_EXPONENT = {"float16": 5.0, "bfloat16": 30.0, "float32": 30.0, "float64": 300.0}
"""exp of more than 11.09, 88.7 or 709.8 is infinite; less than half of that leaves room for a square, and for sums."""
LARGEST_COSINE = {"float16": 1 - 1e-3, "bfloat16": 1 - 1e-2}
"""acos and asin have an infinite gradient at one, which 1 - 1e-6, the bound for other types, is rounded to in these."""
HALF_LARGEST = 65504.0
FAR_ABOVE = 3.0
"""A limit over the usual norm, that lets a step through which is no usual one."""
SIGNLESS = re.compile(
    r"norm|std|var|abs|sum|count|num|mask|valid|square|pow\(2|exp|sqrt|size|len|total|deg|max|area|union|numel|weight|denom|"
    r"scale|energy|temp|sigma|softmax|sigmoid|\bn\b|\bw\b|\bh\b|height|width|bins|freq|hist|mass|prob"
)
"""Words of a divisor that is not negative."""
MAX_OPERANDS = 3
"""Of one operation on a line, that are all bounded."""
MODULES = frozenset({"torch", "F", "functional", "linalg", "nn", "special"})
"""What a function is called of; anything else that a method is called of is a tensor."""


class Given(Protocol):
    """A tensor that an operation was given: its finite numbers lie from `low` to `high`."""

    @property
    def dtype(self) -> str: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...
    @property
    def num_zero(self) -> int: ...
    @property
    def num_nan(self) -> int: ...
    @property
    def num_inf(self) -> int: ...


@frozen_dataclass
class Remedy:
    """What keeps one operation finite: the clamp to put behind its operand, and the rule in words.

    `names` are the functions and methods that call the operation, `operator` its operator in the source;
    `is_second` says that the endangered operand is the right one.
    """

    clamp: str
    rule: str
    names: frozenset[str]
    operator: type[ast.operator] | None = None
    is_second: bool = False


class Setting(NamedTuple):
    """An argument of a function that makes it finite by itself; `num_before` come before it by position."""

    name: str
    value: str
    num_before: int
    why: str


NO_SCORE = (
    "Mask with a large negative number instead of -inf (`masked_fill(mask, -1e9)`, in float16 -1e4), or leave rows out "
    "in which everything is masked."
)
NO_SPREAD = (
    "Take the spread with `correction=0`, so that a single value has one, and add a small number before dividing or "
    "rooting; a last batch of one sample is left out by `drop_last=True`."
)
ALL_IGNORED = (
    "Every label of this batch is ignored, so the mean is 0 / 0: skip such a batch, or use `reduction='sum'` and "
    "divide by the number of labels with `.clamp(min=1)`."
)
EQUAL_VALUES = (
    "Two singular values or eigenvalues are equal, where the vectors have no gradient: use `svdvals` or `eigvalsh`, or "
    "add a small diagonal that differs by row, in float64."
)
BEYOND_MEASURE = 1e9
GROWN = (
    "Find what lets these numbers grow: a state that is carried from step to step, or a product over time, stays "
    "bounded by factors below 1 (`torch.exp(-rate)`, `torch.sigmoid`), by a norm, or by a reset."
)
NO_DIRECTION = "weight_norm divides by the norm of each row, and one is 0: start such a layer with `g` at 0, not `v`."
NO_PRODUCT = (
    "0 times Inf is NaN: fill the infinite factor before the product (`torch.where(mask, x, 0.0)`), or write p log p "
    "as `torch.xlogy(p, p)`."
)
MASKS_ADDED = (
    "Two masks of the most negative number add up to -inf: combine them as booleans and fill once, or clamp the sum at "
    "`torch.finfo(scores.dtype).min`."
)
MOST_NEGATIVE = -1e4
"""What masks are filled with, in float16; and lower, in others."""
NO_VARIANCE = "Give the normalisation an `eps`, and at least two values for each channel or row."
EMPTY = "It is a mean of nothing: skip an empty batch, or use `x.sum() / max(x.numel(), 1)`."
ADVICE: dict[str, str] = {
    **dict.fromkeys(("softmax", "logsoftmax", "logsumexp", "safesoftmax"), NO_SCORE),
    **dict.fromkeys(("std", "var", "stdmean", "varmean"), NO_SPREAD),
    **dict.fromkeys(("nllloss", "nllloss2d", "nlllossforward", "nllloss2dforward"), ALL_IGNORED),
    **dict.fromkeys(("linalgsvd", "linalgeigh", "linalgeig", "svd", "symeig"), EQUAL_VALUES),
    **dict.fromkeys(("nativelayernorm", "nativebatchnorm", "nativegroupnorm", "batchnorm"), NO_VARIANCE),
    **dict.fromkeys(("weightnorminterface", "weightnorm"), NO_DIRECTION),
    "mean": EMPTY,
}
"""What no clamp of an operand can mend."""

SETTINGS: dict[str, Setting] = {
    **dict.fromkeys(
        ("ctc_loss", "CTCLoss"),
        Setting("zero_infinity", "True", 6, "an input shorter than its target has no path, and an infinite loss"),
    ),
    "logit": Setting("eps", "1e-6", 1, "logit is infinite at 0 and at 1"),
    "normalize": Setting("eps", "1e-4", 3, "its 1e-12 is 0 in float16"),
    "cosine_similarity": Setting("eps", "1e-4", 3, "its 1e-8 is 0 in float16"),
    "layer_norm": Setting("eps", "1e-5", 4, "a row of equal values has no variance"),
    "gaussian_nll_loss": Setting("eps", "1e-4", 5, "a variance near 0 makes the loss infinite"),
}
"""By the name of the function that is called on the line."""
OF_HALF = frozenset({"normalize", "cosine_similarity"})


def keep_operand_finite(
    operation: str, dtype: str, file: SourceFile, line: int | None, given: Sequence[Given] = ()
) -> Fix:
    """The remedy for an operation (`log`, `nllloss`), as an edit where it is found on `line`; None is one not known.

    `given` is what it had, where that was seen.
    """
    nodes = nodes_on(file.tree, line) if line is not None else []
    for node in nodes:
        setting = SETTINGS.get(called_name(node))
        if (
            isinstance(node, ast.Call)
            and setting is not None
            and (called_name(node) not in OF_HALF or dtype == "float16")
        ):
            edit = set_arguments(file, node, {setting.name: setting.value}, num_before=setting.num_before)
            summary = f"Give `{called_name(node)}` `{setting.name}={setting.value}`: {setting.why}."
            return Fix.by(edit, "review", summary, "values at that bound")
    if advice := ADVICE.get(operation) or _of_masks(operation, given):
        return Fix.by_hand(advice)
    has_grown = _most(given) > BEYOND_MEASURE and not any(one.num_zero for one in given)
    remedy = None if has_grown and operation == "pow" else find_remedy(operation, dtype, given)
    if remedy is None:
        usual = f"Keep the operands of {operation} where it is finite in {dtype}."
        return Fix.by_hand(_overflows(given, dtype) or (GROWN if _most(given) > BEYOND_MEASURE else usual))
    found = [operand for node in nodes if (operand := _operand(node, remedy)) is not None] if remedy.clamp else []
    found = [one for one in found if not isinstance(one, ast.Constant)]
    parts = [(one, new) for one in found if (new := _bounded(file, one, remedy)) is not None]
    statements = [node for node in nodes if isinstance(node, ast.Assign | ast.AugAssign | ast.Return | ast.Expr)]
    edit = None
    if len(parts) < len(found):
        pass
    elif len(parts) == 1:
        edit = replace_expression(file, *parts[0])
    elif 1 < len(parts) <= MAX_OPERANDS and statements and not _are_nested(found):  # which of them, nobody can tell
        edit = replace_parts(file, statements[-1], parts)
    is_of_int = bool(given) and "int" in given[-1].dtype and remedy.is_second
    where = "" if is_of_int else f" (in {dtype})"
    return Fix.by(edit, "review", f"{remedy.rule}{where}.", "clamped values get no gradient")


def _of_masks(operation: str, given: Sequence[Given]) -> str:
    if operation == "mul" and any(one.num_nan + one.num_inf for one in given):
        return NO_PRODUCT
    masks = [one for one in given if (one.low or 0.0) < MOST_NEGATIVE and (one.high or 0.0) < -MOST_NEGATIVE]
    return MASKS_ADDED if operation in ("add", "sub") and len(masks) > 1 else ""


def _overflows(given: Sequence[Given], dtype: str) -> str:
    """What to do about a result that float16 cannot hold."""
    if dtype != "float16":
        return ""
    return (
        f"float16 ends at {HALF_LARGEST:,.0f}, and this is given numbers up to {_most(given):.3g}: use bfloat16 "
        "(`torch.autocast(..., dtype=torch.bfloat16)`), or run this line in float32 under "
        "`torch.autocast(..., enabled=False)`."
    )


def _most(given: Sequence[Given]) -> float:
    return max((max(abs(one.low or 0.0), abs(one.high or 0.0)) for one in given), default=0.0)


def keep_data_finite(step: int, name: str = "", *, is_masked_late: bool = False) -> Fix:
    """What to do about a tensor that is bad before any layer sees it: a batch, or one that has that `name`.

    Where it `is_masked_late`, the loss is finite and its gradient is not.
    """
    if is_masked_late:
        return Fix.by_hand(
            "Fill it before this line (`torch.where(mask, target, 0.0)`), or leave such rows out: a mask behind it "
            "hides the value, and multiplies a gradient of NaN by 0."
        )
    if name:
        return Fix.by_hand(
            f"Find what writes NaN or Inf to `{name}`: `torch.empty` holds whatever was in memory, and running values "
            "of one bad batch stay bad."
        )
    return Fix.by_hand(
        f"Look at the batch of step {step:,} (`torch.isfinite(batch).all()`), and leave out such samples where the "
        "data is read. If this line divides or takes a root or logarithm, bound its operand."
    )


def keep_update_finite(optimizer: str, eps: float | None, dtype: str) -> Fix:
    """What to do about an update that is not finite though its gradients are: most often, `eps` is zero in float16."""
    if eps is not None and dtype == "float16" and not np.float16(eps):
        return Fix.by_hand(
            f"Set `{optimizer}(..., eps={SMALLEST[dtype]:g})`, since {eps:g} is 0 in {dtype}; or keep the parameters "
            "in float32 and use autocast."
        )
    wider = ", or keep the parameters in float32" if dtype.endswith("float16") else ""
    return Fix.by_hand(f"Check the settings of `{optimizer}` (learning rate, eps){wider}.")


def keep_buffer_bounded(name: str, at: str) -> Fix:
    """Of a buffer that the program's own updates let grow, written at that line."""
    return Fix.by_hand(f"Bound `{name}` where it is written, at {at}: let it decay, or divide it by its norm.")


def find_remedy(operation: str, dtype: str, given: Sequence[Given] = ()) -> Remedy | None:
    """The remedy for an operation (`log`, `div`, `exp`), its values set by dtype and by what it was given."""
    limits = (SMALLEST, LARGEST_EXPONENT)
    least, largest = (f"{limit.get(dtype, limit['float32']):g}" for limit in limits)
    names = frozenset({operation, f"{operation}_"})
    match operation:
        case "log" | "log2" | "log10" | "sqrt" | "rsqrt" | "pow" | "lgamma" | "digamma" | "polygamma":
            rule, operator = f"Clamp the input of `{operation}` at {least}", ast.Pow if operation == "pow" else None
            return Remedy(clamp=f".clamp_min({least})", rule=rule, names=names, operator=operator)
        case "log1p":
            return Remedy(
                clamp=f".clamp_min(-1 + {least})", rule=f"Keep the input of `log1p` above -1 + {least}", names=names
            )
        case "exp" | "expm1" | "exp2" | "sinh" | "cosh":
            rule = f"Clamp the input of `{operation}` below {largest}"
            return Remedy(clamp=f".clamp_max({largest})", rule=rule, names=names)
        case "acos" | "asin" | "atanh" | "erfinv":
            most = f"{LARGEST_COSINE.get(dtype, 1 - 1e-6):g}"
            rule = f"Clamp the input of `{operation}` within {most} of zero"
            names = frozenset({operation, f"arc{operation[1:]}"})
            return Remedy(clamp=f".clamp(-{most}, {most})", rule=rule, names=names)
        case "div" | "reciprocal":
            return _remedy_of_division(operation, least, given)
    return None


def _remedy_of_division(operation: str, least: str, given: Sequence[Given]) -> Remedy:
    """A divisor that counts is one at least; one that can be negative no clamp can bound."""
    divisor = given[-1] if given else None
    clamp, rule = f".clamp_min({least})", f"Keep the denominator above {least}"
    if divisor is not None and "int" in divisor.dtype:
        clamp, rule = ".clamp_min(1)", "Divide by 1 at least"
    elif divisor is not None and (divisor.low or 0.0) < 0:
        clamp, rule = "", f"Keep the denominator's absolute value above {least}, since it is negative at places"
    elif divisor is None:
        rule += "; where it may be negative, bound its absolute value instead"
    names = frozenset({"div", "div_", "divide", "true_divide", "reciprocal"})
    return Remedy(clamp=clamp, rule=rule, names=names, operator=ast.Div, is_second=operation == "div")


def clip_gradients(usual_norm: float | None, clip: tuple[str, float] | None = None) -> Fix:
    """Clip at the usual norm, to two digits, where it is known; `clip` is a line that clips already, and its limit."""
    max_norm = 1.0 if not usual_norm else round(usual_norm, 1 - math.floor(math.log10(usual_norm)))
    if clip is not None and clip[1] > FAR_ABOVE * max_norm:
        return Fix.by_hand(
            f"Lower the limit at {clip[0]} from {clip[1]:g} to {max_norm:g}, the usual norm of the gradients; or lower "
            "the learning rate."
        )
    if clip is not None:
        return Fix.by_hand(
            f"Clipping at {clip[0]} did not hold them: look whether it reaches all parameters, and lower the learning "
            "rate."
        )
    where = "at their usual norm before" if usual_norm else "between `backward()` and"
    return Fix.by_hand(
        f"Clip gradients {where} the optimizer's step: "
        f"`torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm={max_norm:g})`. "
        "With a gradient scaler, call `scaler.unscale_(optimizer)` first. Or lower the learning rate."
    )


def _bounded(file: SourceFile, operand: ast.expr, remedy: Remedy) -> str | None:
    """The text of the operand within bounds; None of a divisor whose sign nobody knows.

    What the divisor was in the step that went bad tells nothing of other steps.
    """
    text = as_receiver(file, operand)
    if remedy.operator is not ast.Div or SIGNLESS.search(text):
        return text + remedy.clamp
    limit = remedy.clamp.partition("(")[2].rstrip(")")
    return f"{text}.where({text}.abs() > {limit}, {limit})" if isinstance(operand, ast.Name | ast.Attribute) else None


def _are_nested(expressions: Sequence[ast.expr]) -> bool:
    return any(one is not other and other in ast.walk(one) for one in expressions for other in expressions)


def _operand(node: ast.AST, remedy: Remedy) -> ast.expr | None:
    """The operand that the remedy bounds, where `node` is the remedy's operation."""
    if isinstance(node, ast.BinOp) and remedy.operator is not None and isinstance(node.op, remedy.operator):
        return node.left if remedy.operator is ast.Pow else node.right
    if not isinstance(node, ast.Call):
        return None
    match node.func:
        case ast.Attribute(value=receiver, attr=name) if name in remedy.names:
            is_module = set(ast.unparse(receiver).split(".")) <= MODULES
            operands = node.args if is_module else [receiver, *node.args]
        case ast.Name(id=name) if name in remedy.names:
            operands = node.args
        case _:
            return None
    place = int(remedy.is_second)
    return operands[place] if place < len(operands) else None
