"""Finds why PyTorch training runs out of memory, is slow or turns to NaN, and says which line to change."""

__version__ = "0.1.0"
