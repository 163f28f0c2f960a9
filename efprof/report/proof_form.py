"""What a proof says in one line."""

from efprof.model import Proof
from efprof.report.wording import show, show_interval
from efprof.units import in_brackets


def proof_sentence(proof: Proof) -> str:
    """`proved: saves 51 ms (44 to 58), 64 ms were predicted`, or what failed."""
    saved = ""
    if proof.measured is not None and proof.predicted is not None:
        ends = in_brackets(show_interval(proof.interval, proof.unit))
        verb = "saves" if proof.measured >= 0 else "costs"
        saved = f"{verb} {show(abs(proof.measured), proof.unit)}{ends}, {show(proof.predicted, proof.unit)} predicted"
    return f"{proof.verdict}: {'; '.join(filter(None, (saved, *proof.reasons))) or 'the fault is gone'}"
