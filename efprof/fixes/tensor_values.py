"""Whether an expression of the user's is plainly a tensor: by its form, its uses in its file, and its callers."""

import ast
from collections.abc import Iterator, Sequence

TENSOR_METHODS = frozenset(
    {
        "abs", "backward", "bmm", "clamp", "clamp_max", "clamp_min", "contiguous", "cpu", "detach", "exp", "expand",
        "item", "log_softmax", "logsumexp", "masked_fill", "matmul", "mm", "numel", "permute", "pow", "relu",
        "requires_grad_", "retain_grad", "roll", "sigmoid", "softmax", "sqrt", "square", "tanh", "unsqueeze",
    }
)  # fmt: skip
"""A name that one of these is called on somewhere in the file is a tensor; an array of numpy has next to none."""
ARRAY_METHODS = frozenset(
    {
        "clone",
        "div",
        "flatten",
        "mean",
        "mul",
        "norm",
        "reshape",
        "squeeze",
        "std",
        "sub",
        "sum",
        "transpose",
        "var",
        "view",
    }
)
"""An array has them as well, but keeps no graph: where one is looked for, what they give is a tensor."""
NO_TENSOR_RESULTS = frozenset({"backward", "item", "numel"})
JOINING = frozenset({"cat", "concat", "concatenate", "hstack", "stack", "vstack", "where", "maximum", "minimum"})
FUNCTIONAL = frozenset({"functional", "F"})
"""What torch.nn.functional is called by; what it is given first is a tensor, and so is what it gives back. A method
`backward` of anything else, a scaler or an accelerator, is given one, too."""
ARITHMETIC = (ast.Sub, ast.Mult, ast.Div, ast.MatMult, ast.Pow)
DISPLAYS = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp)


def is_tensor(value: ast.expr, tree: ast.Module) -> bool:
    """Whether `value`, an expression of the file `tree`, is plainly a tensor whatever else its statement keeps."""
    return _has_form_of_tensor(value) or ast.unparse(value) in _tensor_names(tree)


def is_tensor_with_graph(value: ast.expr, tree: ast.Module, others: Sequence[ast.Module] = ()) -> bool:
    """The same of a value that is known to keep a graph, as no number and no array does; `others` are more files."""
    if is_tensor(value, tree) or _is_computed(value) or _is_operand(value, tree):
        return True
    if isinstance(value, ast.Attribute):
        return _is_field_of_tensors(value.attr, [tree, *others])
    match value:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return is_tensor_with_graph(left, tree) or is_tensor_with_graph(right, tree)
        case ast.Subscript(value=inner):
            return is_tensor(inner, tree)
        case ast.Name():
            return _is_given_tensors(value, tree, others)
    return False


def caught_error(value: ast.expr, tree: ast.Module) -> ast.Name | None:
    """The name of an error in the handler that caught it: `error`, or that of `(step, error)` beside no tensor."""
    parts = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
    errors = [part for part in parts if isinstance(part, ast.Name) and _is_caught(part, tree)]
    if len(errors) != 1:
        return None
    tensors = _tensor_names(tree)
    kept = {ast.unparse(node) for part in parts if part is not errors[0] for node in ast.walk(part)}
    return None if kept & tensors else errors[0]


def _is_caught(value: ast.Name, tree: ast.Module) -> bool:
    handlers = (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))
    return any(node.name == value.id and node.lineno <= value.lineno <= (node.end_lineno or 0) for node in handlers)


def _tensor_names(tree: ast.Module) -> set[str]:
    """The names, attributes and entries, as they are written, that the file uses as tensors somewhere."""
    return {ast.unparse(used) for node in ast.walk(tree) for used in _used_as_tensors(node)}


def _used_as_tensors(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Call(func=ast.Attribute(value=receiver, attr=method), args=args):
            if method in TENSOR_METHODS:
                yield receiver
            if args and (_last_name(receiver) in FUNCTIONAL or method == "backward"):
                yield args[0]
        case ast.Assign(targets=[target], value=value) if _has_form_of_tensor(value):
            yield target
        case ast.AnnAssign(target=target, annotation=annotation) if _last_name(annotation) == "Tensor":
            yield target
        case ast.arg(arg=name, annotation=ast.expr() as annotation) if _last_name(annotation) == "Tensor":
            yield ast.Name(id=name)


def _has_form_of_tensor(value: ast.expr) -> bool:
    """By the operation that makes it alone."""
    match value:
        case ast.Call(func=ast.Attribute(value=receiver, attr=method)):
            is_joined = method in JOINING and _last_name(receiver) == "torch"
            return method in TENSOR_METHODS - NO_TENSOR_RESULTS or is_joined or _last_name(receiver) in FUNCTIONAL
    return False


def _is_computed(value: ast.expr) -> bool:
    """Whether it is the result of arithmetic, of a method of arrays, or cut out of an array."""
    match value:
        case ast.Call(func=ast.Attribute(attr=method)):
            return method in ARRAY_METHODS
        case ast.BinOp(left=left, op=operation, right=right) if isinstance(operation, ARITHMETIC):
            return not isinstance(left, DISPLAYS) and not isinstance(right, DISPLAYS)
        case ast.Subscript():
            return _is_cut(value)
    return isinstance(value, ast.UnaryOp)


def _is_operand(value: ast.expr, tree: ast.Module) -> bool:
    """Whether the file computes with it and a tensor, cuts it, or calls a method of arrays on it."""
    written = ast.unparse(value)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=receiver, attr=method)) if method in ARRAY_METHODS:
                found = [receiver]
            case ast.BinOp(left=left, op=operation, right=right) if isinstance(operation, ARITHMETIC):
                found = [left] if _has_form_of_tensor(right) else [right] if _has_form_of_tensor(left) else []
            case ast.Subscript(value=receiver) if _is_cut(node):
                found = [receiver]
            case _:
                continue
        if any(ast.unparse(one) == written for one in found):
            return True
    return False


def _is_field_of_tensors(name: str, files: Sequence[ast.Module]) -> bool:
    """Whether classes declare a field of that name, all of them as a tensor."""
    fields = [
        field.annotation
        for file in files
        for owner in ast.walk(file)
        if isinstance(owner, ast.ClassDef)
        for field in owner.body
        if isinstance(field, ast.AnnAssign) and _last_name(field.target) == name
    ]
    return bool(fields) and all(_last_name(annotation) == "Tensor" for annotation in fields)


def _is_cut(value: ast.Subscript) -> bool:
    """`x[:, 0]`: a list takes no such index."""
    return isinstance(value.slice, ast.Tuple) and any(isinstance(part, ast.Slice) for part in value.slice.elts)


def _last_name(expression: ast.AST) -> str:
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _is_given_tensors(value: ast.Name, tree: ast.Module, others: Sequence[ast.Module]) -> bool:
    """Whether it is an argument for which every call that is seen gives what is plainly a tensor."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or not function.lineno <= value.lineno <= (
            function.end_lineno or 0
        ):
            continue
        names = [argument.arg for argument in function.args.args]
        if value.id in names:
            place = names.index(value.id) - (names[0] in ("self", "cls"))
            files = [tree, *(other for other in others if other is not tree)]
            given = [(one, file) for file in files for one in _given(file, function.name, place, value.id)]
            return bool(given) and all(is_tensor(one, file) for one, file in given)
    return False


def _given(tree: ast.Module, function: str, place: int, name: str) -> Iterator[ast.expr]:
    """What calls of a function of that name give for its argument."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last_name(node.func) == function:
            yield from (keyword.value for keyword in node.keywords if keyword.arg == name)
            yield from node.args[place : place + 1]
