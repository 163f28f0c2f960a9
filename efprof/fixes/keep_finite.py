"""Keeps numbers finite: clamps what an operation is given (`x.clamp_min(1.2e-07).log()`), clips exploding gradients."""

import ast
import math

import numpy as np

from efprof.fixes.source_edit import as_receiver, replace_expression
from efprof.model import Fix, SourceFile, frozen_dataclass, nodes_on

SMALLEST = {"float16": 1e-4, "bfloat16": 1e-6, "float32": 1e-6, "float64": 1e-12}
"""The least operand that keeps the value and its gradient finite with room to spare; in float16 1e-5 is too low
(measured)."""
LARGEST_EXPONENT = {"float16": 11.0, "bfloat16": 88.0, "float32": 88.0, "float64": 709.0}
"""exp of more is infinite: ln 65504 = 11.09, ln 3.4e38 = 88.7, ln 1.8e308 = 709.8."""
LARGEST_COSINE = {"float16": 1 - 1e-3, "bfloat16": 1 - 1e-2}
"""acos and asin have an infinite gradient at one, which 1 - 1e-6, the bound for other types, is rounded to in these."""

_NO_SCORE = (
    "Mask with a large negative number instead of -inf (`masked_fill(mask, -1e9)`, in float16 -1e4), or leave rows out "
    "in which everything is masked."
)
_NO_SPREAD = (
    "Take the spread with `correction=0`, so that a single value has one, and add a small number before dividing or "
    "rooting; a last batch of one sample is left out by `drop_last=True`."
)
ADVICE = {"softmax": _NO_SCORE, "logsoftmax": _NO_SCORE, "std": _NO_SPREAD, "var": _NO_SPREAD}
"""What no clamp of an operand can mend."""

MODULES = frozenset({"torch", "F", "functional", "linalg", "nn", "special"})
"""What a function is called of; anything else that a method is called of is a tensor."""


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


def keep_operand_finite(operation: str, dtype: str, file: SourceFile, line: int | None) -> Fix:
    """The remedy for an operation, as an edit where it is found on `line`; None is a line that is not known."""
    remedy = find_remedy(operation, dtype)
    if remedy is None:
        usual = f"Keep the operands of {operation} where it is finite in {dtype}."
        return Fix.by_hand(ADVICE.get(operation, usual))
    edit, nodes = None, nodes_on(file.tree, line) if line is not None else []
    match [operand for node in nodes if (operand := _operand(node, remedy)) is not None]:
        case [operand] if not isinstance(operand, ast.Constant):  # exactly one call fits: the clamp comes behind it
            edit = replace_expression(file, operand, as_receiver(file, operand) + remedy.clamp)
    return Fix.by(edit, "review", f"{remedy.rule} (in {dtype}).", "clamped values get no gradient")


def keep_data_finite(step: int) -> Fix:
    """What to do about a batch that is bad before any layer sees it."""
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


def find_remedy(operation: str, dtype: str) -> Remedy | None:
    """The remedy for an autograd node's operation (`log`, `div`, `exp`), its values set by dtype."""
    limits = (SMALLEST, LARGEST_EXPONENT)
    least, largest = (f"{limit.get(dtype, limit['float32']):g}" for limit in limits)
    names = frozenset({operation, f"{operation}_"})
    match operation:
        case "log" | "log2" | "log10" | "sqrt" | "rsqrt" | "pow":
            rule, operator = f"Clamp the input of `{operation}` at {least}", ast.Pow if operation == "pow" else None
            return Remedy(clamp=f".clamp_min({least})", rule=rule, names=names, operator=operator)
        case "exp" | "expm1" | "exp2" | "sinh" | "cosh":
            rule = f"Clamp the input of `{operation}` below {largest}"
            return Remedy(clamp=f".clamp_max({largest})", rule=rule, names=names)
        case "acos" | "asin":
            most = f"{LARGEST_COSINE.get(dtype, 1 - 1e-6):g}"
            rule = f"Clamp the input of `{operation}` within {most} of zero"
            names = frozenset({operation, f"arc{operation[1:]}"})
            return Remedy(clamp=f".clamp(-{most}, {most})", rule=rule, names=names)
        case "div" | "reciprocal":
            return Remedy(
                clamp=f".clamp_min({least})",
                rule=f"Keep the denominator above {least}; where it may be negative, bound its absolute value instead",
                names=frozenset({"div", "div_", "divide", "true_divide", "reciprocal"}),
                operator=ast.Div,
                is_second=operation == "div",
            )
    return None


def clip_gradients(usual_norm: float | None) -> Fix:
    """Clip at the usual norm, to two digits, where it is known."""
    if not usual_norm:
        return Fix.by_hand(
            "Clip gradients between `backward()` and the optimizer's step: "
            "`torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)`, after `scaler.unscale_(optimizer)` where there "
            "is a scaler. Or lower the learning rate."
        )
    max_norm = round(usual_norm, 1 - math.floor(math.log10(usual_norm)))
    return Fix.by_hand(
        "Clip gradients at their usual norm before the optimizer's step: "
        f"`torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm={max_norm:g})`. "
        "With a gradient scaler, call `scaler.unscale_(optimizer)` first. Or lower the learning rate."
    )


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
