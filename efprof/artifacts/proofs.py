"""proofs.json in a run folder: what `efprof prove` has found of the fixes of this run's findings."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from efprof.artifacts.files import locked, read_json, write_atomically
from efprof.model import Proof

FILE = "proofs.json"


class Proofs(msgspec.Struct):
    """The newest of each finding and head, the newest last."""

    proofs: tuple[Proof, ...] = ()


def read_proofs(run_folder: Path) -> tuple[Proof, ...]:
    """Empty where nothing was proved; raises UnreadableInput."""
    path = run_folder / FILE
    return read_json(path, Proofs).proofs if path.exists() else ()


def keep_proofs(run_folder: Path, proofs: Sequence[Proof]) -> None:
    """After those that are there, or in their place."""
    given = {(proof.key, proof.head) for proof in proofs}
    with locked(run_folder):
        others = [proof for proof in read_proofs(run_folder) if (proof.key, proof.head) not in given]
        write_atomically(run_folder / FILE, msgspec.json.encode(Proofs((*others, *proofs))))
