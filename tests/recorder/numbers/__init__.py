"""Losses, gradients and scales."""
