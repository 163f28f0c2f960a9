"""What one look at the machine found."""

from collections.abc import Sequence
from typing import Literal

import msgspec

Status = Literal["yes", "careful", "no", "unknown"]
"""`careful` works, and something about it needs a person's attention."""


class Check(msgspec.Struct, frozen=True):
    """Whether `name` can be recorded, or is as it should be; why; and what to do, where there is anything to do.

    Where an essential one is `no`, training cannot be recorded at all.
    """

    name: str
    status: Status
    why: str
    advice: str = ""
    is_essential: bool = False


def essential(name: str, *, is_met: bool, why: str, advice: str) -> Check:
    """A check without which training cannot be recorded at all; the advice is for where it is not met."""
    return Check(name, "yes" if is_met else "no", why, "" if is_met else advice, is_essential=True)


def can_record(checks: Sequence[Check]) -> bool:
    """Whether training can be recorded, be it with less than everything."""
    return not any(check.is_essential and check.status == "no" for check in checks)
