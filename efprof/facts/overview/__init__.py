"""What the page tells of every run, findings or none. May import every other fact."""
