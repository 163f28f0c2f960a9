"""Reading what a run folder holds."""
