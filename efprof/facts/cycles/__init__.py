"""Reference cycles that only the garbage collector frees."""
