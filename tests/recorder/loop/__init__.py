"""Where steps begin and end, and whose they are."""
