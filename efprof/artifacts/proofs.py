"""proofs.json in a run folder: what `efprof prove` has found of the fixes of this run's findings."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from efprof.artifacts.files import locked, read_json, write_atomically
from efprof.model import Proof

FILE = "proofs.json"


class Proofs(msgspec.Struct):
    """The newest of each finding."""

    proofs: tuple[Proof, ...] = ()


def read_proofs(run_folder: Path) -> tuple[Proof, ...]:
    """Empty where nothing was proved; raises UnreadableInput."""
    path = run_folder / FILE
    return read_json(path, Proofs).proofs if path.exists() else ()


def keep_proofs(run_folder: Path, proofs: Sequence[Proof]) -> None:
    """Beside those that are there, or in their place."""
    with locked(run_folder):
        kept = {(proof.key, proof.head): proof for proof in (*read_proofs(run_folder), *proofs)}
        write_atomically(run_folder / FILE, msgspec.json.encode(Proofs(tuple(kept.values()))))
