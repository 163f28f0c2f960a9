"""One file, one audit: a function of the file's name from a run to findings."""
