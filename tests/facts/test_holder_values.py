"""What a name may stand for is known by the text and the command, and unknown where anything else may set it."""

import ast

import pytest

from efprof.facts.holder_values import KnownValues
from efprof.facts.possible_values import UNKNOWN

PARSER = """\
parser.add_argument("kind")
parser.add_argument("-k", "--keep", type=int, default=None)
parser.add_argument("--clear-every", type=int, default=0)
parser.add_argument("--healthy", action="store_true")
parser.add_argument("--mode", action="append")
args = parser.parse_args()
"""


def values(expression: str, text: str = PARSER, *arguments: str, **settings: str) -> frozenset[object]:
    """Of an expression in that program, started with these arguments."""
    known = KnownValues({"train.py": ast.parse(text)}, ["python", "train.py", *arguments], settings)
    return known.of(ast.parse(expression, mode="eval").body)


@pytest.mark.parametrize(
    ("expression", "arguments", "expected"),
    [
        ("args.keep", (), {None}),
        ("args.keep", ("--keep", "5"), {5}),
        ("args.keep", ("--keep=5",), {5}),
        ("args.keep", ("-k", "5"), {5}),
        ("args.clear_every", (), {0}),
        ("args.healthy", (), {False}),
        ("args.healthy", ("--healthy",), {True}),
        ("args.mode", (), {UNKNOWN}),
        ("args.kind == 'A'", ("A",), {True}),
        ("args.kind == 'A'", ("B", "C"), {False}),
        ("sys.argv[1]", ("B",), {"B"}),
        ("sys.argv[2]", ("B",), {UNKNOWN}),
        ("'--fast' in sys.argv", ("--fast",), {True}),
        ("2 ** 10 - 24", (), {1000}),
        ("-3 if args.healthy else None", (), {-3, None}),
        ("args.other", (), {UNKNOWN}),
    ],
)
def test_options_are_what_the_command_gives_them_or_their_default(
    expression: str, arguments: tuple[str, ...], expected: set[object]
) -> None:
    assert values(expression, PARSER, *arguments) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("limit = 9", {9}),
        ("limit = 9\nif x:\n    limit = None", {9, None}),
        ("limit, other = 9, 8", {9}),
        ("limit, other = read()", {UNKNOWN}),
        ("limit = 9\nlimit += 1", {9, UNKNOWN}),
        ("for limit in range(9): pass", {UNKNOWN}),
        ("def keep(limit=9): pass\nkeep()", {9}),
        ("def keep(limit=9): pass\nkeep(7)", {9, 7}),
        ("def keep(limit=9): pass\nkeep(*rest)", {9, UNKNOWN}),
        ("def keep(limit=9): pass\nlibrary.run(keep)", {9, UNKNOWN}),
        ("class Keeper:\n    def __init__(self, limit):\n        self.limit = limit\nKeeper(9)", {9}),
        ("@dataclass\nclass Keeper:\n    limit: int = 9\nKeeper()", {9}),
        ("@dataclass\nclass Keeper:\n    limit: int = 9\nlibrary.parse(Keeper)", {9, UNKNOWN}),
        ("limit = 9\nsetattr(args, key, value)", {UNKNOWN}),
        ("limit = 9\nvars(args).update(settings)", {UNKNOWN}),
        ("limit = 9\nprint(vars(args))", {9}),
        ("limit = limit", {UNKNOWN}),
    ],
)
def test_a_name_is_what_the_text_gives_it_unless_something_else_may(text: str, expected: set[object]) -> None:
    assert values("limit", text) == expected


def test_a_setting_of_a_configuration_file_counts() -> None:
    assert values("cfg.limit", "cfg = read()", **{"train.toml:data.limit": "500"}) == {500}


@pytest.mark.parametrize(
    ("test", "may_be_true", "may_be_false"),
    [
        ("args.healthy", False, True),
        ("not args.healthy", True, False),
        ("args.healthy and unknown", False, True),
        ("args.healthy or unknown", True, True),
        ("unknown", True, True),
    ],
)
def test_a_condition_is_as_sure_as_its_parts(test: str, may_be_true: bool, may_be_false: bool) -> None:
    known = KnownValues({"train.py": ast.parse(PARSER)}, ["python", "train.py", "A"], {})
    condition = ast.parse(test, mode="eval").body
    assert known.may_be(condition, wanted=True) is may_be_true
    assert known.may_be(condition, wanted=False) is may_be_false
