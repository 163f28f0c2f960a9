"""The two sides of a live comparison: a source tree for each, and the runs that are recorded in it."""
