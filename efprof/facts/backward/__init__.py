"""Calls of backward: graphs that are kept for nothing, gradients that nothing clears."""
