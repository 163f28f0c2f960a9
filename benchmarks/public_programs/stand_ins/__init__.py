"""Modules that stand beside Accelerate's example in the place of packages that would fetch data."""
