"""The line to blame for host memory that grows: the one statement that keeps more with every step, else the loop's."""

import ast
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from efprof.artifacts.steps import read_steps
from efprof.facts.growing_statements import GrowingStatement
from efprof.facts.host_growth_statements import keeping_statements
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.facts.step_code import StepCode
from efprof.facts.syntax import MODULE, name_of, placed_nodes
from efprof.model import SourceLine, ThinEvidence

HOST_FILE = "host.memray"
"""In the rank folder, with `--host-memory`; memray itself reads it."""
MAPPING = frozenset(
    {"memmap", "mmap", "mmap_mode", "open_memmap", "load_dataset", "load_from_disk", "lmdb", "safe_open"}
)
"""Names of what maps files into memory: their pages count as resident from when they are read, and are no leak."""

WAYS_TO_BOUND = (
    "(a list: `collections.deque(maxlen=...)`; a dictionary: drop the oldest keys; a queue: `maxsize=...`), write it "
    "to a file every so often, or keep one number of what is put into it"
)
"""To keep less in a container."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostGrowthLines:
    """`statements` keep more with every step, by the sources; `blame` is the only one, or the line of backward.

    `names` are what each of them fills, `name` that of the only one.
    `mapping` is a line that maps files into memory; `captured` says whether memray recorded the run.
    """

    blame: SourceLine
    statements: tuple[SourceLine, ...]
    names: tuple[str | None, ...]
    name: str | None
    mapping: SourceLine | None
    captured: bool

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises ThinEvidence where not even the line that calls backward is known."""
        sources = run.get(Sources)
        sites = Counter(record.backward_site for record in read_steps(run.rank_folder)[0] if record.backward_site)
        code = run.get(StepCode)
        found = keeping_statements(code)
        lines = {sources.line(statement.site): statement for statement in found}
        if not lines and not sites:
            raise ThinEvidence("host memory grows, and no line of the training loop was recorded to point at.")
        is_sure = len(lines) == 1
        names = tuple(_name(statement, code.trees) for statement in lines.values())
        return cls(
            blame=next(iter(lines)) if is_sure else sources.line(sites.most_common(1)[0][0]),
            statements=tuple(lines),
            names=names,
            name=names[0] if is_sure else None,
            mapping=_mapping(sources, code.trees),
            captured=(run.rank_folder / HOST_FILE).exists(),
        )


def _name(statement: GrowingStatement, trees: Mapping[str, ast.AST]) -> str | None:
    """What it puts things into, as the source spells it: `self.rows`."""
    for placed in placed_nodes(trees[statement.file]):
        node = placed.node
        if not isinstance(node, ast.expr | ast.stmt) or node.lineno != statement.line:
            continue
        match node:
            case ast.Call(func=ast.Attribute(value=receiver), args=args) if statement.value in args:
                return ast.unparse(receiver)
            case ast.Assign(targets=[ast.Subscript(value=receiver)]) | ast.AugAssign(target=receiver):
                return ast.unparse(receiver)
    return None


def _mapping(sources: Sources, trees: Mapping[str, ast.AST]) -> SourceLine | None:
    for file, tree in trees.items():
        for placed in placed_nodes(tree):
            node = placed.node
            is_named = isinstance(node, ast.Name | ast.Attribute) and name_of(node) in MAPPING
            if is_named or (isinstance(node, ast.keyword) and node.arg in MAPPING):
                assert isinstance(node, ast.expr | ast.keyword)
                return sources.line(f"{file}:{node.lineno}:{placed.function or MODULE}")
    return None
