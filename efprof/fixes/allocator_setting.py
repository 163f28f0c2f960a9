"""Sets the CUDA allocator's configuration before the command."""

from efprof.model import EnvironmentVariable, Fix

VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
"""Every torch reads it; PYTORCH_ALLOC_CONF is ignored by the CUDA allocator of 2.9 (pytorch/pytorch#183387)."""


def set_allocator(old: str, new: str, *, caution: str = "") -> Fix:
    """The numbers a program computes do not depend on it; an empty configuration is torch's default."""
    what = f"Start the command with {VARIABLE}={new}" if new else f"Start the command without {VARIABLE}"
    return Fix(
        summary=f"{what}.{' ' + caution if caution else ''}",
        applicability="safe",
        changes=(EnvironmentVariable(name=VARIABLE, old=old or None, new=new),),
    )
