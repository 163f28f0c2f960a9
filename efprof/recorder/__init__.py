"""Runs inside the training process; the only layer that imports torch."""
