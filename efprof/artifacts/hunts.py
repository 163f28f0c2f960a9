"""What a second run is told and tells: where to trace, and what it saw; and hunt.json, what was found that way."""

from pathlib import Path
from typing import Literal

import msgspec

from efprof.artifacts.files import read_json, write_atomically

FILE = "hunt.json"

VARIABLE = "EFPROF_HUNT"
"""In the environment of a second run: the path of its HuntPlan."""

Kind = Literal["nan", "inf", "given", "literal", "passed"]
"""NaN from no NaN, Inf from finite numbers, bad before any operation that was traced, a constant of the program's, or
made of one of these."""

Symptom = Literal["loss", "gradient"]

HuntVerdict = Literal["born", "not reproduced", "no origin"]


class Operand(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A tensor that an operation was given, or made; `low` and `high` are of its finite numbers.

    `name` is that of a parameter or a buffer, from the outermost module; "parameter" or "buffer" is what it `is_a`.
    One that was overwritten has the numbers of afterwards.
    """

    shape: list[int]
    dtype: str
    num_elements: int
    name: str = ""
    is_a: str = ""
    low: float | None = None
    high: float | None = None
    num_zero: int = 0
    num_nan: int = 0
    num_inf: int = 0
    is_overwritten: bool = False
    made_at: str = ""
    """The user's line that wrote to it last."""


class Origin(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An operation that made a NaN or an Inf, or was given one; those of a process are numbered in their order.

    `site` is the user's line, `library_site` that of a library which called it, if another; `module` the path of the
    innermost module; of one within backward `node` is autograd's, and all that of the forward operation behind it.
    """

    kind: Kind
    operation: str
    number: int
    pass_number: int
    site: str | None
    library_site: str = ""
    module: str = ""
    node: str = ""
    operands: list[Operand] = []
    scalars: list[float | str] = []
    result: Operand | None = None
    optimizer: str = ""
    """The class of the one whose update it is part of, with its `eps` where it has one."""
    eps: float | None = None
    is_masked: bool = False
    """Within backward, where the gradient was exactly 0 and a mask's operation had just run."""
    before: list[str] = []
    """The nodes of autograd that had run before, the last one last."""


class Hop(msgspec.Struct, array_like=True):
    """An operation that passed it on."""

    operation: str
    site: str | None


class StartState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What random numbers begin with in a process that has just imported torch."""

    torch_seed: int
    python: tuple[int, bytes, int, float | None]
    """Version, 32-bit words, place, and the second of two normal numbers, of Python's `random`."""
    numpy: tuple[bytes, int, int, float] | None = None
    """Words, place, and whether there is a second normal number and which, of NumPy's old generator."""
    hash_seed: str = ""
    """PYTHONHASHSEED."""
    num_threads: int = 0


class RankPlan(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Of one rank's process: where it begins to trace, from where on to look for the hit, and how it starts.

    Passes are outermost calls of backward, counted from 0; `steps` are those of the recorded run up to the hit, each
    with its number of passes and its loss.
    """

    first_traced: int
    first_hit: int
    last_pass: int
    steps: list[tuple[int, float | str | None]]
    state: StartState | None = None


class HuntPlan(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Of a second run. One that `is_resumed` begins anywhere in the first, where three losses in a row are equal."""

    results: str
    """A folder, in which each process writes a file."""
    root: str
    """The folder that sites are relative to."""
    ranks: dict[int, RankPlan]
    tolerance: float
    """By which losses may differ, relatively."""
    looks_at_gradients: bool
    """Else at the loss alone."""
    is_resumed: bool = False


class HuntSeen(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one process tells of its second run.

    `why` it ended there: the symptom came; the program ended; so many passes came without it; a loss differed; no place
    was found where losses are equal.
    """

    rank: int
    why: Literal["hit", "ended", "over", "differs"]
    num_passes: int
    num_equal: int = 0
    """Steps whose losses were compared and equal."""
    difference: tuple[int, float | str, float | str] | None = None
    """The step, its loss in the recorded run and in this one."""
    has_found_place: bool = True
    symptom: Symptom = "loss"
    origin: Origin | None = None
    chain: list[Hop] = []
    norms: dict[str, list[float | str]] = {}
    grown: list[Operand] = []
    is_compiled: bool = False
    is_traced: bool = False
    """Whether tracing had begun by then."""
    errors: list[str] = []


class Hunt(msgspec.Struct, kw_only=True, omit_defaults=True):
    """hunt.json: what a second run has shown.

    `verdict` is "born" where an origin was seen after equal losses, "not reproduced" where the losses differ or the
    symptom did not come again, "no origin" where it did and nothing that was traced had made it.
    """

    verdict: HuntVerdict
    why: str
    step: int
    """Of the hit, in the recorded run."""
    seconds: float
    num_equal: int
    rank: int = 0
    symptom: Symptom = "loss"
    origin: Origin | None = None
    chain: list[Hop] = []
    norms: dict[str, list[float | str]] = {}
    """Of each parameter's gradient, after the passes before the hit."""
    grown: list[Operand] = []
    """Buffers and parameters with numbers beyond all measure, at the hit."""
    is_compiled: bool = False


def read_hunt(run_folder: Path) -> Hunt | None:
    """None where nothing was hunted; raises UnreadableInput."""
    path = run_folder / FILE
    return read_json(path, Hunt) if path.exists() else None


def keep_hunt(run_folder: Path, hunt: Hunt) -> None:
    """In the place of an older one."""
    write_atomically(run_folder / FILE, msgspec.json.format(msgspec.json.encode(hunt), indent=1))
