"""Allocations replayed: what is alive at every instant, and what the highest one consists of."""
